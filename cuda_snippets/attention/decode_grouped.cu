// Decoding for up to 8 query heads that share a cache head, on tensor cores.
//
// New:     against decode.cu: the queries of a group are the rows of a matrix, so that S = Q K^T and O = P V are products for
//          mma().  Fragments come straight from global memory: a sum over columns may take them in any order, so a lane
//          declares the 8 neighbours of its 16-byte load to be the ones that it needs.
// Traffic: as decode.cu.
// Needs:   sm_80
// Launch:  as decode.cu; a warp takes 16 keys at a time.
// Limits:  as decode.cu, and: bf16 or fp16, D = 64 or 128, GROUP up to 8.
#include "attention/mma.h"

#ifndef D                               // head dimension
#define D 128
#endif
#ifndef GROUP                           // query heads that share the keys
#define GROUP 8
#endif
#ifndef THREADS
#define THREADS 256
#endif
#ifndef BLOCKS                          // that a multiprocessor should hold at once
#define BLOCKS 1
#endif
#define WARPS (THREADS / 32)
#define CHUNKS (D / 32)                 // of columns that 4 lanes load from a row of Q and K
#define PANELS (D / 64)                 // of columns that 8 lanes load from a row of V
#define LOG2_E 1.44269504f
static_assert(D % 64 == 0 && D <= 128 && GROUP <= 8 && THREADS % 32 == 0, "see Limits");

__device__ inline float origin_of(float m) { return m == NEG_INF ? 0 : m; }

// Number i of the eight in `a` and of the eight in `b`, side by side: two neighbours in a column of V.
__device__ inline unsigned pair_of(const uint4& a, const uint4& b, int i) {
    const unsigned x = i / 2 == 0 ? a.x : i / 2 == 1 ? a.y : i / 2 == 2 ? a.z : a.w;
    const unsigned y = i / 2 == 0 ? b.x : i / 2 == 1 ? b.y : i / 2 == 2 ? b.z : b.w;
    return i % 2 == 0 ? (x & 0xffff) | y << 16 : x >> 16 | (y & 0xffff0000);
}

// Lane 4g + t: key g of both halves of a tile of 16, its columns 8t .. 8t + 7 of every 32.  Zeros behind the last of `left` keys.
__device__ inline void load_keys(uint4 (&key)[2][CHUNKS], const uint4* K, int left) {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    #pragma unroll
    for (int n = 0; n < 2; ++n)
        for (int c = 0; c < CHUNKS; ++c)
            key[n][c] = 8 * n + g < left ? __ldg(K + (8 * n + g) * (D / 8) + 4 * c + t) : make_uint4(0, 0, 0, 0);
}

// Lane 4g + t: the values of keys 2t, 2t + 1, 2t + 8, 2t + 9, their columns 8g .. 8g + 7 of every 64.
__device__ inline void load_values(uint4 (&value)[4][PANELS], const uint4* V, int left) {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    #pragma unroll
    for (int n = 0; n < 4; ++n) {
        const int j = 2 * t + n % 2 + n / 2 * 8;
        for (int p = 0; p < PANELS; ++p) value[n][p] = j < left ? __ldg(V + j * (D / 8) + 8 * p + g) : make_uint4(0, 0, 0, 0);
    }
}

// Four columns of O, and (m, d), merged from `count` states.  Weights are powers of two.
struct Columns { float m, d; float4 O; };

__device__ inline Columns merge(const float2* state, int next_state, const float4* sum, int next_sum, int count) {
    Columns all = {NEG_INF, 0, make_float4(0, 0, 0, 0)};
    #pragma unroll 8
    for (int i = 0; i < count; ++i) all.m = fmaxf(all.m, state[i * next_state].x);
    #pragma unroll 8
    for (int i = 0; i < count; ++i) {
        const float2 one = state[i * next_state];
        const float4 O = sum[(size_t)i * next_sum];
        const float w = power_of_2(one.x - origin_of(all.m));
        all.d += w * one.y;
        all.O.x += w * O.x, all.O.y += w * O.y, all.O.z += w * O.z, all.O.w += w * O.w;
    }
    return all;
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
attention_decode(const T* __restrict__ q, const T* __restrict__ k, const T* __restrict__ v, T* __restrict__ o, float* __restrict__ lse,
                 float2* states, float* sums, unsigned* arrived, const int* __restrict__ lengths, int ragged,
                 int Sk, int splits, int chunk, int per_cache_head, int per_sequence, float scale) {
    __shared__ float2 warp_states[WARPS][GROUP];
    __shared__ __align__(16) float warp_sums[WARPS][GROUP][D];
    __shared__ bool last;
    const int part = blockIdx.x / splits, split = blockIdx.x % splits, warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    const size_t query = (size_t)part * GROUP;          // the first of them
    const int length = ragged ? max(0, min(lengths[part / per_sequence], Sk)) : Sk;
    const int begin = split * chunk, end = min(length, begin + chunk), used = max(1, (length + chunk - 1) / chunk);
    if (split >= used) return;                          // a short sequence: no keys are left for this block

    const size_t first = ((size_t)(part / per_cache_head) * Sk + begin + 16 * warp) * (D / 8);
    const uint4 *K = (const uint4*)k + first, *V = (const uint4*)v + first;
    uint4 Q[CHUNKS], key[2][CHUNKS], value[4][PANELS];
    int left = end - begin - 16 * warp;                 // keys from this warp's next one to the end
    load_keys(key, K, left);
    load_values(value, V, left);
    #pragma unroll
    for (int c = 0; c < CHUNKS; ++c)
        Q[c] = g < GROUP ? ((const uint4*)q)[(query + g) * (D / 8) + 4 * c + t] : make_uint4(0, 0, 0, 0);

    float m = NEG_INF, d = 0, O[PANELS][8][4] = {};      // of query g; d of this lane's keys alone; rows 8 to 15 of O stay 0
    for (; left > 0; left -= 16 * WARPS) {
        float s[2][4] = {};
        #pragma unroll
        for (int c = 0; c < CHUNKS; ++c) {
            const unsigned even[4] = {Q[c].x, 0, Q[c].y, 0}, odd[4] = {Q[c].z, 0, Q[c].w, 0};
            #pragma unroll
            for (int n = 0; n < 2; ++n) {
                mma(s[n], even, key[n][c].x, key[n][c].y);
                mma(s[n], odd, key[n][c].z, key[n][c].w);
            }
        }
        load_keys(key, K += 16 * WARPS * (D / 8), left - 16 * WARPS);   // under way while the values are used

        float m_new = m;
        #pragma unroll
        for (int n = 0; n < 2; ++n)
            for (int j = 0; j < 2; ++j) {
                s[n][j] = 8 * n + 2 * t + j < left ? s[n][j] * (scale * LOG2_E) : NEG_INF;
                m_new = fmaxf(m_new, s[n][j]);
            }
        for (int bit = 1; bit < 4; bit *= 2) m_new = fmaxf(m_new, __shfl_xor_sync(~0u, m_new, bit));     // may lose a NaN; d keeps it
        const float base = origin_of(m_new), factor = power_of_2(m - base);
        m = m_new;
        d *= factor;
        for (int n = 0; n < 2; ++n)
            for (int j = 0; j < 2; ++j) d += s[n][j] = power_of_2(s[n][j] - base);
        const unsigned P[4] = {pack(s[0][0], s[0][1]), 0, pack(s[1][0], s[1][1]), 0};
        #pragma unroll
        for (int p = 0; p < PANELS; ++p)
            for (int i = 0; i < 8; ++i) {
                O[p][i][0] *= factor, O[p][i][1] *= factor;
                mma(O[p][i], P, pair_of(value[0][p], value[1][p], i), pair_of(value[2][p], value[3][p], i));
            }
        load_values(value, V += 16 * WARPS * (D / 8), left - 16 * WARPS);
    }
    for (int bit = 1; bit < 4; bit *= 2) d += __shfl_xor_sync(~0u, d, bit);

    if (g < GROUP) {                                    // column 16t + i of a panel is in O[.][i][0], column 16t + 8 + i in O[.][i][1]
        if (t == 0) warp_states[warp][g] = make_float2(m, d);
        #pragma unroll
        for (int p = 0; p < PANELS; ++p)
            for (int i = 0; i < 16; i += 4) {
                const int r = i % 8, h = i / 8;
                *(float4*)&warp_sums[warp][g][64 * p + 16 * t + i] = make_float4(O[p][r][h], O[p][r + 1][h], O[p][r + 2][h], O[p][r + 3][h]);
            }
    }
    __syncthreads();

    auto write_result = [&](int row, int column, const Columns& all) {
        const float over = all.d == 0 ? 0 : 1 / all.d;  // d == 0: no key is visible
        *(uint2*)(o + (query + row) * D + column) = make_uint2(pack(all.O.x * over, all.O.y * over), pack(all.O.z * over, all.O.w * over));
        if (column == 0) lse[query + row] = (all.m + log2f(all.d)) / LOG2_E;
    };
    for (int e = 4 * threadIdx.x; e < GROUP * D; e += 4 * THREADS) {
        const int row = e / D, column = e % D;
        const Columns all = merge(&warp_states[0][row], GROUP, (const float4*)&warp_sums[0][row][column], GROUP * D / 4, WARPS);
        const size_t at = (query + row) * splits + split;
        if (used == 1) write_result(row, column, all);
        else {
            *(float4*)(sums + at * D + column) = all.O;
            if (column == 0) states[at] = make_float2(all.m, all.d);
            __threadfence();                            // written before it is counted
        }
    }
    if (used == 1) return;
    __syncthreads();
    if (threadIdx.x == 0) last = atomicInc(arrived + part, used - 1) == used - 1;        // and back to 0
    __syncthreads();
    if (!last) return;
    __threadfence();
    for (int e = 4 * threadIdx.x; e < GROUP * D; e += 4 * THREADS) {
        const size_t at = (query + e / D) * splits;
        write_result(e / D, e % D, merge(states + at, 1, (const float4*)(sums + at * D + e % D), D / 4, used));
    }
}
