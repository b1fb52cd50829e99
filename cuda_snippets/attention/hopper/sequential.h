// What a consumer does with the tiles of a head, one step after the other: scores, softmax, output.
#pragma once
#include "attention/hopper/ring.h"

// The state of 64 queries takes up the keys they see.  `own` of the block's `tiles` concern this warpgroup, the others it lets go.
__device__ __forceinline__ void consume(State& s, Memory& memory, Place& place, Block& Q, Barrier& q_empty, const Seen& seen, float factor,
                                        int own, int tiles) {
    for (int tile = 0; tile < own; ++tile, place.next()) {
        const int stage = place.stage;
        Scores S;
        memory.k_full[stage].wait(place.round);
        start_scores(S, Q, memory.K[stage]);
        wait_wgmma<0>();
        settle(S);
        release(memory.k_empty[stage]);
        if (tile + 1 == own) release(q_empty);

        float shrink[2];
        Weights P;
        mask(S, seen, tile * KEYS);
        if (update(s, S, factor, shrink)) rescale(s, shrink);
        pack_weights(P, S);

        memory.v_full[stage].wait(place.round);
        start_output(s, P, memory.V[stage]);
        wait_wgmma<0>();
        settle(s.O);
        release(memory.v_empty[stage]);
    }
    if (own == 0) join_warps(), release(q_empty);
#pragma unroll 1
    for (int tile = own; tile < tiles; ++tile, place.next()) let_go(memory, place);
}
