// Several bands of queries a warp: what ldmatrix brings of K and V is used once for each band.  The queries lie in shared memory.
#pragma once
#include "attention/tile.h"

#ifndef BANDS
#define BANDS 2
#endif
#define QUERIES (16 * WARPS * BANDS)

struct Warp {
    State state[BANDS];
    Scores S[BANDS];
};

// S = Q K^T.
__device__ inline void multiply_keys(Warp& w, Rows<QUERIES>& Q, Tile& K) {
#pragma unroll
    for (int b = 0; b < BANDS; ++b)
        for (auto& x : w.S[b]) x[0] = x[1] = x[2] = x[3] = 0;
    for (int c = 0; c < D / 16; ++c) {
        unsigned A[BANDS][4], B[4];
#pragma unroll
        for (int b = 0; b < BANDS; ++b) Q.load_queries(A[b], threadIdx.x / 32 * BANDS + b, c);
        for (int n = 0; n < KEYS / 16; ++n) {
            K.load_keys(B, n, c);
#pragma unroll
            for (int b = 0; b < BANDS; ++b) mma(w.S[b][2 * n], A[b], B[0], B[1]), mma(w.S[b][2 * n + 1], A[b], B[2], B[3]);
        }
    }
}

// O += P V.
__device__ inline void multiply_values(Warp& w, Tile& V) {
    for (int n = 0; n < KEYS / 16; ++n) {
        unsigned P[BANDS][4], B[4];
#pragma unroll
        for (int b = 0; b < BANDS; ++b) weights(P[b], w.S[b], n);
        for (int c = 0; c < D / 16; ++c) {
            V.load_values(B, n, c);
#pragma unroll
            for (int b = 0; b < BANDS; ++b) {
                mma(w.state[b].O[2 * c], P[b], B[0], B[1]);
                mma(w.state[b].O[2 * c + 1], P[b], B[2], B[3]);
            }
        }
    }
}
