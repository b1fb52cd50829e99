// Attention on tensor cores, with fewer instructions between the two products.
//
// New:     against mma_pipeline.cu: exponentials are powers of 2, with the scale folded in, and O is rescaled only when a maximum has
//          changed (lean.h); keys are compared with the mask only in tiles that the mask or the last key cuts.
// Memory:  as mma.cu.
// Launch:  as mma_pipeline.cu.
// Limits:  as mma.cu; scale > 0 unless compiled with -DANY_SCALE.
// Needs:   sm_80
#include "attention/lean.h"
#include "attention/tile.h"

#define QUERIES (16 * WARPS)

extern "C" __global__ void __launch_bounds__(THREADS, 2)
attention_mma_lean(const T* __restrict__ q, const T* __restrict__ k, const T* __restrict__ v, T* __restrict__ o,
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
    const Keys least = seen_by(begin, Sq, Sk, causal, window);          // the first query of the block, and the last
    const Keys most = seen_by(min(begin + QUERIES, Sq) - 1, Sq, Sk, causal, window);
    const int from = least.first / KEYS * KEYS, end = most.end;
    const Lean lean(scale);

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
        const bool cut = start < most.first || start + KEYS > least.end;
        if (SCALE_FIRST || cut) scale_and_mask(S, lean.scale, added, first, seen, start);
        update(state, S, lean);
        multiply_values(state, S, V);
    }
    write(state, o + head * Sq * D, lse + head * Sq, first, Sq, lean.unit);
}
