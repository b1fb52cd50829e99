// Attention with the instructions of a Hopper GPU: one copy for a whole tile, one product for a whole warpgroup.
//
// New:     against mma_bands.cu: TMA copies a tile at the word of one thread, swizzled, with zeros past the end.  wgmma multiplies
//          64 queries with a tile that stays in shared memory: no ldmatrix, and no registers for K and V.  Nothing overlaps yet.
// Memory:  as mma_bands.cu, with QUERIES = 64 * CONSUMERS.
// Launch:  grid (B * H, ceil(Sq / QUERIES)), block 128 * CONSUMERS, dynamic shared memory for `Memory`.  q, k and v are tensor maps.
// Limits:  bf16, or fp16 with -DHALF; D = 64 or 128; scale > 0; no window, no bias; Sq up to 65,535 * QUERIES.
// Needs:   sm_90a
#define STAGES 1
#include "attention/hopper/ring.h"

extern "C" __global__ void __launch_bounds__(128 * CONSUMERS, 1)
hopper_wgmma(const __grid_constant__ TensorMap q, const __grid_constant__ TensorMap k, const __grid_constant__ TensorMap v,
             const __grid_constant__ TensorMap o, float* __restrict__ lse, int Sq, int Sk, int causal, float scale) {
    Memory& memory = ready_memory();
    Tile &K = memory.K[0], &V = memory.V[0];
    const int begin = first_query(blockIdx.y, Sq), head = blockIdx.x;
    const int consumer = this_warpgroup(), queries = begin + 64 * consumer, first = queries + threadIdx.x % 128 / 32 * 16;
    const int tiles = tiles_of(begin, QUERIES, Sq, Sk, causal);
    const float factor = scale * 1.44269504f;
    const Seen seen(first, Sq, Sk, causal);

    if (threadIdx.x == 0)
        for (int w = 0; w < CONSUMERS; ++w) fetch(memory.Q[w], q, memory.q_full[w], begin + 64 * w, head);
    memory.q_full[consumer].wait(0);
    State s;
    for (int tile = 0; tile < tiles; ++tile) {
        if (threadIdx.x == 0) {
            fetch(K, k, memory.k_full[0], tile * KEYS, head / GROUP);
            fetch(V, v, memory.v_full[0], tile * KEYS, head / GROUP);
        }
        Scores S;
        memory.k_full[0].wait(tile % 2);
        start_scores(S, memory.Q[consumer], K);
        wait_wgmma<0>();
        settle(S);

        float shrink[2];
        Weights P;
        mask(S, seen, tile * KEYS);
        if (update(s, S, factor, shrink)) rescale(s, shrink);
        pack_weights(P, S);

        memory.v_full[0].wait(tile % 2);
        start_output(s, P, V);
        wait_wgmma<0>();
        settle(s.O);
        __syncthreads();                                            // all are done with the tile
    }
    write(s, memory.O[consumer], o, lse, queries, head, Sq, scale);
    wait_stores();
}
