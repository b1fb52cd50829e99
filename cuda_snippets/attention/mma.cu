// Attention on tensor cores: two matrix products in one kernel, and the softmax between them in registers.
//
// New:     against tiled.cu: a warp owns 16 queries, and mma.sync computes their scores of 8 keys with 16 columns at a time
//          (-DHALF: fp16, else bf16; sums in fp32).  S stays in registers, and P is already spread over the lanes as the second
//          product wants it (band.h).  K and V lie in shared memory row by row: lanes of a request meet in the same banks.
// Memory:  q is read once, o written once; every block of QUERIES queries reads K and V once.
// Launch:  grid (ceil(Sq / QUERIES), B * H), block 32 * WARPS.
// Limits:  q [B, H, Sq, D], k and v [B, H / GROUP, Sk, D] contiguous, from a multiple of 16 bytes on; D = 32, 48, ... 128; B * H up
//          to 65,535; Sq and Sk below 2^30.  What the features are: features.h.
// Needs:   sm_80
#include "attention/band.h"

#ifndef WARPS
#define WARPS 4
#endif
#define QUERIES (16 * WARPS)
#define THREADS (32 * WARPS)

// A tile of `rows` rows into shared memory, 16 bytes a load; zeros after its last row.
__device__ void copy(void* tile, const T* from, int rows) {
    for (int n = threadIdx.x; n < KEYS * D / 8; n += THREADS)
        ((uint4*)tile)[n] = n < rows * D / 8 ? ((const uint4*)from)[n] : make_uint4(0, 0, 0, 0);
}

extern "C" __global__ void __launch_bounds__(THREADS, 2)
attention_mma(const T* __restrict__ q, const T* __restrict__ k, const T* __restrict__ v, T* __restrict__ o,
              float* __restrict__ lse, int Sq, int Sk, int causal, float scale WINDOW_PARAMETER BIAS_PARAMETERS) {
    __shared__ __align__(16) unsigned K[KEYS][D / 2];                   // pairs of neighbouring columns
    __shared__ __align__(16) unsigned short V[KEYS][D];
    const int begin = blockIdx.x * QUERIES, first = begin + threadIdx.x / 32 * 16, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    const size_t head = blockIdx.y;
    k += head / GROUP * Sk * D, v += head / GROUP * Sk * D;
    const Bias added = BIAS_OF(head);

    Queries Q;
    load_queries(Q, q + head * Sq * D, first, Sq);
    State state;
    const Keys seen[2] = {seen_by(first + row_of(0), Sq, Sk, causal, window), seen_by(first + row_of(1), Sq, Sk, causal, window)};
    const int from = seen_by(begin, Sq, Sk, causal, window).first / KEYS * KEYS;
    const int end = seen_by(min(begin + QUERIES, Sq) - 1, Sq, Sk, causal, window).end;

    for (int start = from; start < end; start += KEYS) {
        copy(K, k + (size_t)start * D, min(KEYS, Sk - start));
        copy(V, v + (size_t)start * D, min(KEYS, Sk - start));
        __syncthreads();

        Scores S = {};
        for (int c = 0; c < D / 16; ++c)                                // S = Q K^T, 16 columns at a time
            for (int n = 0; n < KEYS / 8; ++n) mma(S[n], Q[c], K[8 * n + g][8 * c + t], K[8 * n + g][8 * c + 4 + t]);
        scale_and_mask(S, scale, added, first, seen, start);
        update(state, S);
        for (int j = 0; j < KEYS / 16; ++j) {                           // O += P V, 16 keys at a time
            unsigned P[4];
            weights(P, S, j);
            const auto pair_of = [&](int row, int column) { return V[row][column] | V[row + 1][column] << 16; };
            for (int n = 0; n < D / 8; ++n)
                mma(state.O[n], P, pair_of(16 * j + 2 * t, 8 * n + g), pair_of(16 * j + 2 * t + 8, 8 * n + g));
        }
        __syncthreads();                                                // all are done with this tile
    }
    write(state, o + head * Sq * D, lse + head * Sq, first, Sq);
}
