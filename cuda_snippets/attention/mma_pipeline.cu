// Attention on tensor cores, with the next tile under way while this one is used.
//
// New:     against mma_swizzle.cu: there are two tiles of K and two of V.  cp.async copies from global to shared memory without
//          passing through registers, and nobody waits for it until the tile is needed.  One barrier a tile instead of two.
// Memory:  as mma.cu.
// Launch:  grid and block as mma.cu, 4 * sizeof(Tile) bytes of dynamic shared memory: 8 * KEYS * D, with D rounded up to 32, 64 or 128.
// Limits:  as mma.cu.
// Needs:   sm_80
#include "attention/tile.h"

#define QUERIES (16 * WARPS)

extern "C" __global__ void __launch_bounds__(THREADS, 2)
attention_mma_pipeline(const T* __restrict__ q, const T* __restrict__ k, const T* __restrict__ v, T* __restrict__ o,
                       float* __restrict__ lse, int Sq, int Sk, int causal, float scale WINDOW_PARAMETER BIAS_PARAMETERS) {
    extern __shared__ __align__(128) char memory[];
    Tile (*const tiles)[2] = (Tile (*)[2])memory;                       // tiles[buffer] = {K, V}
    const int begin = blockIdx.x * QUERIES, first = begin + threadIdx.x / 32 * 16;
    const size_t head = blockIdx.y;
    k += head / GROUP * Sk * D, v += head / GROUP * Sk * D;
    const Bias added = BIAS_OF(head);

    Queries Q;
    load_queries(Q, q + head * Sq * D, first, Sq);
    State state;
    const Keys seen[2] = {seen_by(first + row_of(0), Sq, Sk, causal, window), seen_by(first + row_of(1), Sq, Sk, causal, window)};
    const int from = seen_by(begin, Sq, Sk, causal, window).first / KEYS * KEYS;
    const int end = seen_by(min(begin + QUERIES, Sq) - 1, Sq, Sk, causal, window).end;

    const auto fetch = [&](int start) {
        if (start < end) {
            tiles[start / KEYS % 2][0].start_copy(k + (size_t)start * D, Sk - start);
            tiles[start / KEYS % 2][1].start_copy(v + (size_t)start * D, Sk - start);
        }
        end_group();
    };
    fetch(from);
    for (int start = from; start < end; start += KEYS) {
        wait_groups<0>();                                               // this thread's part of the tile is there,
        __syncthreads();                                                // everybody's is, and all are done with the tile before
        fetch(start + KEYS);

        Tile& K = tiles[start / KEYS % 2][0];
        Tile& V = tiles[start / KEYS % 2][1];
        Scores S = {};
        multiply_keys(S, Q, K);
        scale_and_mask(S, scale, added, first, seen, start);
        update(state, S);
        multiply_values(state, S, V);
    }
    write(state, o + head * Sq * D, lse + head * Sq, first, Sq);
}
