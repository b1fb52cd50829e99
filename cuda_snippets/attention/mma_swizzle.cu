// Attention on tensor cores, with swizzled tiles and matrix loads.
//
// New:     against mma.cu: ldmatrix reads four matrices of 8 x 8 with one instruction, and transposes those of V on the way.  The tiles are
//          swizzled (tile.h), so that the 8 rows of a matrix lie in 32 different banks.  Registers and arithmetic are unchanged.
// Memory:  as mma.cu.
// Launch:  as mma.cu.
// Limits:  as mma.cu.
// Needs:   sm_80
#include "attention/tile.h"

#define QUERIES (16 * WARPS)

extern "C" __global__ void __launch_bounds__(THREADS, 2)
attention_mma_swizzle(const T* __restrict__ q, const T* __restrict__ k, const T* __restrict__ v, T* __restrict__ o,
                      float* __restrict__ lse, int Sq, int Sk, int causal, float scale WINDOW_PARAMETER BIAS_PARAMETERS) {
    __shared__ Tile K, V;
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

    for (int start = from; start < end; start += KEYS) {
        K.copy(k + (size_t)start * D, Sk - start);
        V.copy(v + (size_t)start * D, Sk - start);
        __syncthreads();

        Scores S = {};
        multiply_keys(S, Q, K);
        scale_and_mask(S, scale, added, first, seen, start);
        update(state, S);
        multiply_values(state, S, V);
        __syncthreads();                                                // all are done with this tile
    }
    write(state, o + head * Sq * D, lse + head * Sq, first, Sq);
}
