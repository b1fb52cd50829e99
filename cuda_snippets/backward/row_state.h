// The state of a row in one pass: what both forward kernels begin with.
#pragma once
#include "backward/team.h"

#ifndef LOADS
#define LOADS 4                                     // loads of 16 bytes that a thread has under way
#endif

__shared__ State partial[32];                       // for team_merge()

__device__ inline State row_state(Team team, const T* x, Split row) {
    State state = EMPTY;
    for (int e = team.t; e < row.ends; e += team.threads) state = merge(state, State{(F)x[row.end(e)], 1});
    const uint4* x16 = (const uint4*)(x + row.head);
    for (int first = team.t; first < row.vectors; first += LOADS * team.threads) {
        uint4 bytes[LOADS];
        for (int i = 0; i < LOADS; ++i)
            if (first + i * team.threads < row.vectors) bytes[i] = x16[first + i * team.threads];
        F m = NEG_INF, d = 0;
        for (int i = 0; i < LOADS; ++i) {
            if (first + i * team.threads >= row.vectors) continue;
            const Piece piece(bytes[i]);
            for (int j = 0; j < WIDTH; ++j) m = max(m, piece.v[j]);             // drops a NaN, but d keeps it
        }
        const F zero = origin(m);
        for (int i = 0; i < LOADS; ++i) {
            if (first + i * team.threads >= row.vectors) continue;
            const Piece piece(bytes[i]);
            for (int j = 0; j < WIDTH; ++j) d += quick_exponential(piece.v[j] - zero);
        }
        state = merge(state, State{m, d});
    }
    return team_merge(state, EMPTY, partial);
}
