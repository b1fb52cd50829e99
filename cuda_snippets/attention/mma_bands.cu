// Attention on tensor cores, with two bands of queries a warp: the last step.
//
// New:     against mma_lean.cu: a warp owns BANDS bands of 16 queries instead of one.  What ldmatrix brings of K or V serves BANDS mma,
//          and a block reads K and V once for twice as many queries.  The registers are full: Q stays in shared memory.  All heads
//          begin with the queries that see most keys, so that no long block is left for the end.
// Memory:  as mma.cu, with QUERIES = 16 * WARPS * BANDS.
// Launch:  grid (B * H, ceil(Sq / QUERIES)), block 32 * WARPS, dynamic shared memory for 4 * KEYS + QUERIES rows of D numbers, D
//          rounded up to 32, 64 or 128.  -DKEYS=128 is faster for D <= 64, and fits the registers.
// Limits:  as mma_lean.cu; Sq up to 65,535 * QUERIES.
// Needs:   sm_80
#include "attention/bands.h"
#include "attention/lean.h"

extern "C" __global__ void __launch_bounds__(THREADS, 2)
attention_mma_bands(const T* __restrict__ q, const T* __restrict__ k, const T* __restrict__ v, T* __restrict__ o,
                    float* __restrict__ lse, int Sq, int Sk, int causal, float scale WINDOW_PARAMETER BIAS_PARAMETERS) {
    extern __shared__ __align__(128) char memory[];
    Tile (*const tiles)[2] = (Tile (*)[2])memory;                       // tiles[buffer] = {K, V}
    Rows<QUERIES>& Q = *(Rows<QUERIES>*)(tiles + 2);
    const int begin = (gridDim.y - 1 - blockIdx.y) * QUERIES;           // the last queries see most keys
    const int bands = begin + threadIdx.x / 32 * 16 * BANDS;
    const size_t head = blockIdx.x;
    k += head / GROUP * Sk * D, v += head / GROUP * Sk * D;
    const Bias added = BIAS_OF(head);
    const Keys least = seen_by(begin, Sq, Sk, causal, window);          // the first query of the block, and the last
    const Keys most = seen_by(min(begin + QUERIES, Sq) - 1, Sq, Sk, causal, window);
    const int from = least.first / KEYS * KEYS, end = most.end;

    const auto fetch = [&](int start) {
        if (start < end) {
            tiles[start / KEYS % 2][0].start_copy(k + (size_t)start * D, Sk - start);
            tiles[start / KEYS % 2][1].start_copy(v + (size_t)start * D, Sk - start);
        }
        end_group();
    };
    Q.start_copy(q + (head * Sq + begin) * D, Sq - begin);
    fetch(from);

    Warp w;
    const Lean lean(scale);
    for (int start = from; start < end; start += KEYS) {
        wait_groups<0>();                                               // this thread's part of the tile is there,
        __syncthreads();                                                // everybody's is, and all are done with the tile before
        fetch(start + KEYS);

        multiply_keys(w, Q, tiles[start / KEYS % 2][0]);
        const bool cut = start < most.first || start + KEYS > least.end;
#pragma unroll
        for (int b = 0; b < BANDS; ++b) {
            const int first = bands + 16 * b;
            if (SCALE_FIRST || cut) {
                const Keys seen[2] = {seen_by(first + row_of(0), Sq, Sk, causal, window),
                                      seen_by(first + row_of(1), Sq, Sk, causal, window)};
                scale_and_mask(w.S[b], lean.scale, added, first, seen, start);
            }
            update(w.state[b], w.S[b], lean);
        }
        multiply_values(w, tiles[start / KEYS % 2][1]);
    }
    wait_groups<0>();
#pragma unroll
    for (int b = 0; b < BANDS; ++b) write(w.state[b], o + head * Sq * D, lse + head * Sq, bands + 16 * b, Sq, lean.unit);
}
