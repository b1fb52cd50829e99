// What a consumer does with the tiles of a head, overlapped: the tensor cores compute the scores of the next tile, and the output
// of the one before, while this warpgroup computes exponentials.
#pragma once
#include "attention/hopper/ring.h"

#ifndef TURNS
#define TURNS 0                                 // 1: consumers start their products one after the other, when the scores are there
#endif

__device__ inline void wait_for_turn(int consumer) {
    if (TURNS) wait_turn(1 + consumer);
}
__device__ inline void end_turn(int consumer) {
    if (TURNS) pass_turn(1 + (consumer + 1) % CONSUMERS);
}

// As in sequential.h.  K is one tile ahead of V.
__device__ __forceinline__ void consume(State& s, Memory& memory, Place& place, Block& Q, Barrier& q_empty, const Seen& seen, float factor,
                                        int own, int tiles) {
    const int consumer = this_warpgroup() - 1;
    Scores S;
    Weights P;
    float shrink[2];
    Place before = place;                       // that of V
    if (own > 0) {
        memory.k_full[place.stage].wait(place.round);
        start_scores(S, Q, memory.K[place.stage]);
        wait_wgmma<0>();
        settle(S);
        release(memory.k_empty[place.stage]);
        mask(S, seen, 0);
        if (update(s, S, factor, shrink)) rescale(s, shrink);
        pack_weights(P, S);
        place.next();
    }
    for (int tile = 1; tile < own; ++tile, place.next(), before.next()) {
        memory.k_full[place.stage].wait(place.round);
        wait_for_turn(consumer);
        start_scores(S, Q, memory.K[place.stage]);
        memory.v_full[before.stage].wait(before.round);
        start_output(s, P, memory.V[before.stage]);
        wait_wgmma<1>();                        // the scores are there, the output may not be
        end_turn(consumer);
        settle(S);
        release(memory.k_empty[place.stage]);
        mask(S, seen, tile * KEYS);
        const bool grown = update(s, S, factor, shrink);
        wait_wgmma<0>();
        settle(s.O);
        release(memory.v_empty[before.stage]);
        if (grown) rescale(s, shrink);
        pack_weights(P, S);
    }
    if (own == 0) join_warps();
    release(q_empty);
    if (own > 0) {
        memory.v_full[before.stage].wait(before.round);
        start_output(s, P, memory.V[before.stage]);
        wait_wgmma<0>();
        settle(s.O);
        release(memory.v_empty[before.stage]);
    }
#pragma unroll 1
    for (int tile = own; tile < tiles; ++tile, place.next()) {
        if (tile > 0) wait_for_turn(consumer), end_turn(consumer);
        let_go(memory, place);
    }
}
