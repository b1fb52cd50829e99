// 64 queries of a warpgroup: each of its warps owns a band of 16, with the registers of attention/band.h, since the results of
// wgmma lie as those of mma do.  One wgmma multiplies the four bands with a whole tile.
#pragma once
#ifndef KEYS
#define KEYS 128                                // keys in a tile
#endif
#include "attention/band.h"
#include "attention/hopper/ptx.h"
#include "attention/hopper/wgmma.h"

static_assert(D == 64 || D == 128, "tiles are panels of 64 columns");

constexpr int PANELS = D / 64;
typedef T Block[PANELS][64][64];                // 64 queries in shared memory: panels of 64 columns, as copy_tile brings them
typedef T Tile[PANELS][KEYS][64];               // KEYS rows of K or V
typedef unsigned Weights[KEYS / 16][4];         // P, packed: operands A

// S = Q K^T is started: both are read along their rows.
__device__ __forceinline__ void start_scores(Scores& S, const Block& Q, const Tile& K) {
    const u64 q = matrix_at(Q), k = matrix_at(K);
    begin_wgmma();
#pragma unroll
    for (int n = 0; n < D / 16; ++n)                // 16 columns are 32 bytes, and 64 a panel
        wgmma(S, q + (n / 4 * sizeof Q[0] + n % 4 * 32) / 16, k + (n / 4 * sizeof K[0] + n % 4 * 32) / 16, n > 0);
    end_wgmma();
}

// O += P V is started: V is read along its columns.
__device__ __forceinline__ void start_output(State& s, const Weights& P, const Tile& V) {
    const u64 v = matrix_at(V, sizeof V[0]);
    begin_wgmma();
#pragma unroll
    for (int n = 0; n < KEYS / 16; ++n) wgmma(s.O, P[n], v + n * 16 * 128 / 16);     // 16 rows of 128 bytes
    end_wgmma();
}

// Which keys this warp's 16 queries see: row r the first end[r], and each row at least `all`.
struct Seen {
    int end[2], all;
    __device__ Seen(int first, int Sq, int Sk, int causal)
        : end{seen_by(first + row_of(0), Sq, Sk, causal, 0).end, seen_by(first + row_of(1), Sq, Sk, causal, 0).end},
          all(seen_by(first, Sq, Sk, causal, 0).end) {}
};

// -inf where query and key do not see each other; `start` is the tile's first key.
__device__ __forceinline__ void mask(Scores& S, const Seen& seen, int start) {
    if (start + KEYS <= seen.all) return;
#pragma unroll
    for (int n = 0; n < KEYS / 8; ++n)
#pragma unroll
        for (int c = 0; c < 4; ++c)
            if (start + 8 * n + column_of(c % 2) >= seen.end[c / 2]) S[n][c] = NEG_INF;
}

#if LAZY
#include "attention/hopper/lazy.h"
#else
// What m and the scores are counted in, for the LSE.
__device__ inline float unit(float scale) { return scale; }

// The state takes up the scores of a tile; S becomes P = 2^(factor (S - m)), with factor = scale log2 e > 0.  O is left as it is:
// `shrink` says what it must be multiplied with, if the result is true.
//
// A power costs one FMA and one ex2: factor S - offset, with the offset rounded.  That rounding is the same for P and d and cancels, as
// long as it is small; of scores in the thousands m is subtracted first.
__device__ __forceinline__ bool update(State& s, Scores& S, float factor, float (&shrink)[2]) {
    float m[2] = {s.m[0], s.m[1]};
#pragma unroll
    for (int n = 0; n < KEYS / 8; ++n)
#pragma unroll
        for (int c = 0; c < 4; ++c) m[c / 2] = fmaxf(m[c / 2], S[n][c]);
    m[0] = over_row(m[0], larger), m[1] = over_row(m[1], larger);
    const bool grown = __any_sync(~0u, m[0] > s.m[0] || m[1] > s.m[1]);
    if (grown) {
        for (int r = 0; r < 2; ++r) shrink[r] = power_of_2(factor * (s.m[r] - origin(m[r]))), s.m[r] = m[r], s.d[r] *= shrink[r];
    }
    float offset[2] = {factor * origin(s.m[0]), factor * origin(s.m[1])};
    if (__any_sync(~0u, fabsf(offset[0]) > 1024 || fabsf(offset[1]) > 1024)) {
#pragma unroll
        for (int n = 0; n < KEYS / 8; ++n)
#pragma unroll
            for (int c = 0; c < 4; ++c) S[n][c] -= origin(s.m[c / 2]);
        offset[0] = offset[1] = 0;
    }
#pragma unroll
    for (int n = 0; n < KEYS / 8; ++n)
#pragma unroll
        for (int c = 0; c < 4; ++c) s.d[c / 2] += S[n][c] = power_of_2(fmaf(S[n][c], factor, -offset[c / 2]));
    return grown;
}
#endif

__device__ __forceinline__ void rescale(State& s, const float (&shrink)[2]) {
#pragma unroll
    for (int n = 0; n < D / 8; ++n)
#pragma unroll
        for (int c = 0; c < 4; ++c) s.O[n][c] *= shrink[c / 2];
}

__device__ __forceinline__ void pack_weights(Weights& P, const Scores& S) {
#pragma unroll
    for (int n = 0; n < KEYS / 16; ++n) weights(P[n], S, n);
}

// O / d of a warpgroup goes to shared memory, as copy_tile would have brought it, and from there to `o` while the warpgroup goes on.
__device__ __forceinline__ void write(const State& s, Block& block, const TensorMap& o, float* lse, int queries, int head, int Sq,
                                      float scale) {
    if (queries < 0) return;
    if (threadIdx.x % 128 == 0) wait_stores();          // what the block held before
    join_warps();
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        const int i = threadIdx.x % 128 / 32 * 16 + row_of(r);
        const float d = over_row(s.d[r], sum), factor = d == 0 ? 0 : 1 / d;
#pragma unroll
        for (int n = 0; n < D / 8; ++n)
            ((unsigned*)block[n / 8][i])[((n % 8) ^ (i % 8)) * 4 + threadIdx.x % 4] = pack(s.O[n][2 * r] * factor, s.O[n][2 * r + 1] * factor);
        if (queries + i < Sq && threadIdx.x % 4 == 0) lse[(size_t)head * Sq + queries + i] = unit(scale) * s.m[r] + logf(d);
    }
    seen_by_copies();
    join_warps();
    if (threadIdx.x % 128 == 0)
        for (int p = 0; p < PANELS; ++p) store_tile(o, block[p], 64 * p, queries, head);
}
