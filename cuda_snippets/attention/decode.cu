// Decoding: one query against a long cache of keys, the keys split over blocks.
//
// New:     against tiled.cu: there are too few queries to fill a GPU, so the keys of a head are shared out to many blocks.  LANES
//          neighbouring threads, a slot, take a key, 16 bytes a thread.  Every slot has a state (m, d, O) of its own; at the end
//          slots merge to a warp, warps to a block, blocks to the whole, all by merge().
// Traffic: every number of K and V is read once for GROUP query heads; each block writes D + 2 floats a query head.
// Launch:  grid parts * splits, THREADS threads.  Block `split` of a part takes keys split * chunk to (split + 1) * chunk - 1.
//          The block of a part that ends last merges.  `arrived`, a number a part, is 0 before and after.
// Limits:  q, o [parts, GROUP, D]; k, v [parts / per_cache_head, Sk, D]; 16-byte aligned; D a multiple of 16 up to 128.
#include "types.h"
#include "fast/state.h"

#ifndef D                               // head dimension
#define D 128
#endif
#ifndef GROUP                           // query heads that share the keys
#define GROUP 1
#endif
#ifndef KEYS                            // keys that a slot loads at a time
#define KEYS 4
#endif
#ifndef THREADS
#define THREADS 128
#endif
#ifndef BLOCKS                          // that a multiprocessor should hold at once
#define BLOCKS 1
#endif
#define PIECES (D / WIDTH)              // of 16 bytes, in a key
#define LANES (PIECES <= 2 ? 2 : PIECES <= 4 ? 4 : PIECES <= 8 ? 8 : PIECES <= 16 ? 16 : 32)
#define SLOTS (THREADS / LANES)
#define WARPS (THREADS / 32)
#define LOG2_E 1.44269504f
static_assert(D % 16 == 0 && PIECES <= 32 && THREADS % 32 == 0, "see Limits");

// The state of some keys for one query: m, d, and the WIDTH columns of O that this lane owns.  Scores and m are in powers of
// two: a key with score s has the weight 2^(s - m).
struct Part { float m, d, O[WIDTH]; };

__device__ inline Part merge(const Part& a, const Part& b) {
    Part ab;
    ab.m = fmaxf(a.m, b.m);                             // may lose a NaN; d keeps it
    const float left = exp2f(a.m - finite(ab.m)), right = exp2f(b.m - finite(ab.m));
    ab.d = a.d * left + b.d * right;
    for (int c = 0; c < WIDTH; ++c) ab.O[c] = a.O[c] * left + b.O[c] * right;
    return ab;
}

__device__ inline Part no_keys() {
    Part a = {NEG_INF, 0};
    for (int c = 0; c < WIDTH; ++c) a.O[c] = 0;
    return a;
}

__device__ inline Part of_partner(const Part& a, int bit) {
    Part b = {partner(a.m, bit), partner(a.d, bit)};
    for (int c = 0; c < WIDTH; ++c) b.O[c] = partner(a.O[c], bit);
    return b;
}

// The next KEYS rows of a slot, 16 bytes a lane; zeros behind the last of `left` keys.
__device__ inline void load(uint4 (&rows)[KEYS], const uint4* from, int left) {
    #pragma unroll
    for (int j = 0; j < KEYS; ++j)
        rows[j] = j * SLOTS < left && threadIdx.x % LANES < PIECES ? __ldg(from + j * SLOTS * PIECES) : make_uint4(0, 0, 0, 0);
}

// s[j][g] = q_g . k_j, the sum of what the lanes of the slot have of it; -inf behind the last key.
__device__ inline void scores(float (&s)[KEYS][GROUP], const float (&Q)[GROUP][WIDTH], const uint4 (&key)[KEYS], int left) {
    #pragma unroll
    for (int j = 0; j < KEYS; ++j) {
        const Piece k(key[j]);
        #pragma unroll
        for (int g = 0; g < GROUP; ++g) {
            float dot = 0;
            for (int c = 0; c < WIDTH; ++c) dot += Q[g][c] * k.v[c];
            for (int bit = LANES / 2; bit > 0; bit /= 2) dot += partner(dot, bit);
            s[j][g] = j * SLOTS < left ? dot : NEG_INF;
        }
    }
}

// The states after KEYS more keys: a new maximum, one rescaling, then the terms.
__device__ inline void update(Part (&own)[GROUP], const float (&s)[KEYS][GROUP], const uint4 (&value)[KEYS]) {
    float base[GROUP];
    #pragma unroll
    for (int g = 0; g < GROUP; ++g) {
        const float m = own[g].m;
        for (int j = 0; j < KEYS; ++j) own[g].m = fmaxf(own[g].m, s[j][g]);
        base[g] = finite(own[g].m);
        const float factor = exp2f(m - base[g]);
        own[g].d *= factor;
        for (int c = 0; c < WIDTH; ++c) own[g].O[c] *= factor;
    }
    #pragma unroll
    for (int j = 0; j < KEYS; ++j) {
        const Piece v(value[j]);
        #pragma unroll
        for (int g = 0; g < GROUP; ++g) {
            const float p = exp2f(s[j][g] - base[g]);
            own[g].d += p;
            for (int c = 0; c < WIDTH; ++c) own[g].O[c] += p * v.v[c];
        }
    }
}

// The states of all slots of the block merged; store(g, state) gets that of query g, in the lanes of one slot.
template <class Store> __device__ inline void merge_block(Part (&own)[GROUP], Part (*shared)[GROUP][LANES], Store store) {
    const int lane = threadIdx.x % LANES, slot = threadIdx.x / LANES, warp = threadIdx.x / 32;
    #pragma unroll
    for (int g = 0; g < GROUP; ++g) {
        for (int bit = 16; bit >= LANES; bit /= 2) own[g] = merge(own[g], of_partner(own[g], bit));
        if (threadIdx.x % 32 < LANES) shared[warp][g][lane] = own[g];
    }
    __syncthreads();
    for (int g = slot; g < GROUP; g += SLOTS) {
        Part whole = shared[0][g][lane];
        for (int w = 1; w < WARPS; ++w) whole = merge(whole, shared[w][g][lane]);
        store(g, whole);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
attention_decode(const T* __restrict__ q, const T* __restrict__ k, const T* __restrict__ v, T* __restrict__ o, float* __restrict__ lse,
                 float2* states, float* sums, unsigned* arrived, const int* __restrict__ lengths, int ragged,
                 int Sk, int splits, int chunk, int per_cache_head, int per_sequence, float scale) {
    __shared__ Part shared[WARPS][GROUP][LANES];
    __shared__ bool last;
    const int part = blockIdx.x / splits, split = blockIdx.x % splits, lane = threadIdx.x % LANES, slot = threadIdx.x / LANES;
    const size_t query = (size_t)part * GROUP;          // the first of them
    const bool owner = lane < PIECES;                   // of columns: D = 48 keeps a quarter of the lanes idle
    const int length = ragged ? max(0, min(lengths[part / per_sequence], Sk)) : Sk;
    const int begin = split * chunk, end = min(length, begin + chunk), used = max(1, (length + chunk - 1) / chunk);
    if (split >= used) return;                          // a short sequence: no keys are left for this block

    const size_t first = ((size_t)(part / per_cache_head) * Sk + begin + slot) * PIECES + lane;
    const uint4 *K = (const uint4*)k + first, *V = (const uint4*)v + first;
    uint4 key[KEYS], value[KEYS];
    load(key, K, end - begin - slot);
    load(value, V, end - begin - slot);

    float Q[GROUP][WIDTH];
    Part own[GROUP];
    #pragma unroll
    for (int g = 0; g < GROUP; ++g) {
        const Piece row(owner ? ((const uint4*)q)[(query + g) * PIECES + lane] : make_uint4(0, 0, 0, 0));
        for (int c = 0; c < WIDTH; ++c) Q[g][c] = row.v[c] * (scale * LOG2_E);
        own[g] = no_keys();
    }

    // `left`: how many keys there are from the slot's next one to the end.
    for (int left = end - begin - slot; left > -slot; left -= KEYS * SLOTS) {
        float s[KEYS][GROUP];
        scores(s, Q, key, left);
        load(key, K += KEYS * SLOTS * PIECES, left - KEYS * SLOTS);     // under way while the values are used
        update(own, s, value);
        load(value, V += KEYS * SLOTS * PIECES, left - KEYS * SLOTS);
    }

    auto write_result = [&](int g, const Part& whole) {
        Piece row;
        for (int c = 0; c < WIDTH; ++c) row.v[c] = whole.d == 0 ? 0 : whole.O[c] / whole.d;       // d == 0: no key is visible
        if (owner) ((uint4*)o)[(query + g) * PIECES + lane] = row.bytes();
        if (lane == 0) lse[query + g] = (whole.m + log2f(whole.d)) / LOG2_E;
    };
    if (used == 1) return merge_block(own, shared, write_result);

    // Written, then counted: whoever counts last finds the states of all blocks of the part.
    merge_block(own, shared, [&](int g, const Part& whole) {
        const size_t at = (query + g) * splits + split;
        float4* row = (float4*)(sums + at * D) + lane * (WIDTH / 4);
        for (int c = 0; owner && c < WIDTH; c += 4)
            row[c / 4] = make_float4(whole.O[c], whole.O[c + 1], whole.O[c + 2], whole.O[c + 3]);
        if (lane == 0) states[at] = make_float2(whole.m, whole.d);
        __threadfence();
    });
    __syncthreads();
    if (threadIdx.x == 0) last = atomicInc(arrived + part, used - 1) == used - 1;        // and back to 0
    __syncthreads();
    if (!last) return;
    __threadfence();

    #pragma unroll
    for (int g = 0; g < GROUP; ++g) {
        own[g] = no_keys();
        for (int i = slot; i < used; i += SLOTS) {
            const size_t at = (query + g) * splits + i;
            const float2 state = __ldcg(states + at);
            const float4* row = (const float4*)(sums + at * D) + lane * (WIDTH / 4);
            Part other = {state.x, state.y};
            for (int c = 0; c < WIDTH; c += 4) {
                const float4 four = owner ? __ldcg(row + c / 4) : make_float4(0, 0, 0, 0);
                other.O[c] = four.x, other.O[c + 1] = four.y, other.O[c + 2] = four.z, other.O[c + 3] = four.w;
            }
            own[g] = merge(own[g], other);
        }
    }
    merge_block(own, shared, write_result);
}
