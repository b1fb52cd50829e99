// A band: 16 queries, their scores and their state, in the registers of one warp as the tensor cores want them.
//
// Lane 4g + t holds of rows g and g + 8 two neighbours out of every 8 columns:
//     [0] row g, column 2t    [1] row g, column 2t + 1    [2] row g + 8, column 2t    [3] row g + 8, column 2t + 1
// The scores of 16 keys, packed into pairs, lie just as an operand A of mma does: P goes from S Q to P V without leaving its lane.
#pragma once
#include "attention/features.h"
#include "attention/mma.h"

#ifndef D
#define D 64                                    // the head dimension: compile with -DD=...
#endif
#ifndef KEYS
#define KEYS 64                                 // keys in a tile
#endif
static_assert(D % 16 == 0 && D >= 32 && D <= 128 && KEYS % 16 == 0, "see Limits");

typedef unsigned Queries[D / 16][4];            // operands A: 16 queries
typedef float Scores[KEYS / 8][4];              // results C: 16 queries, KEYS keys

struct State {
    float O[D / 8][4], m[2], d[2];              // d: of the keys this lane has seen; the four lanes of a row add up in the end
    __device__ State() {
        for (auto& o : O) o[0] = o[1] = o[2] = o[3] = 0;
        m[0] = m[1] = NEG_INF, d[0] = d[1] = 0;
    }
};

__device__ inline int row_of(int r) { return threadIdx.x % 32 / 4 + 8 * r; }    // in the band; r = 0 or 1
__device__ inline int column_of(int c) { return threadIdx.x % 4 * 2 + c; }      // in 8 columns; c = 0 or 1
template <class F> __device__ inline float over_row(float v, F f) {             // f over the four lanes of a row
    v = f(v, __shfl_xor_sync(~0u, v, 1));
    return f(v, __shfl_xor_sync(~0u, v, 2));
}
__device__ inline float larger(float a, float b) { return fmaxf(a, b); }
__device__ inline float sum(float a, float b) { return a + b; }

// What exponents are measured from: m, but 0 instead of -inf, because -inf - -inf would be NaN.
__device__ inline float origin(float m) { return m == NEG_INF ? 0 : m; }

// The band whose first query is `first`, from memory.  Queries past the last one are zeros.
__device__ inline void load_queries(Queries& Q, const T* q, int first, int Sq) {
    for (int r = 0; r < 2; ++r) {
        const int i = first + row_of(r);
        const unsigned* const pairs = (const unsigned*)(q + (size_t)i * D);
        for (int n = 0; n < D / 8; ++n) Q[n / 2][n % 2 * 2 + r] = i < Sq ? pairs[4 * n + threadIdx.x % 4] : 0;
    }
}

// S = scale * S + bias, and -inf where query and key do not see each other; `start` is the tile's first key.
__device__ inline void scale_and_mask(Scores& S, float scale, Bias bias, int first, const Keys (&seen)[2], int start) {
    const int begin = start + column_of(0);         // this lane's first key
    for (int r = 0; r < 2; ++r) {
        const int least = seen[r].first - begin, end = seen[r].end - begin;
        for (int n = 0; n < KEYS / 8; ++n)
            for (int c = 0; c < 2; ++c) {
                const int j = 8 * n + c;            // counted from `begin`
                float& x = S[n][2 * r + c];
                x = least <= j && j < end ? scale * x + bias(first + row_of(r), begin + j) : NEG_INF;
            }
    }
}

// The state takes up the scores of a tile; S becomes P = exp(S - m).  fmaxf drops a NaN, but p, d and O keep it.
__device__ inline void update(State& s, Scores& S) {
    for (int r = 0; r < 2; ++r) {
        float m = s.m[r];
        for (auto& x : S) m = fmaxf(m, fmaxf(x[2 * r], x[2 * r + 1]));
        m = over_row(m, larger);
        const float base = origin(m), factor = expf(s.m[r] - base);
        s.m[r] = m;
        s.d[r] *= factor;
        for (auto& o : s.O) o[2 * r] *= factor, o[2 * r + 1] *= factor;
        for (auto& x : S)
            for (int c = 0; c < 2; ++c) s.d[r] += x[2 * r + c] = expf(x[2 * r + c] - base);
    }
}

// 16 keys of P, from key 16 n of the tile, as an operand A.
__device__ inline void weights(unsigned (&P)[4], const Scores& S, int n) {
    P[0] = pack(S[2 * n][0], S[2 * n][1]), P[1] = pack(S[2 * n][2], S[2 * n][3]);
    P[2] = pack(S[2 * n + 1][0], S[2 * n + 1][1]), P[3] = pack(S[2 * n + 1][2], S[2 * n + 1][3]);
}

// O / d and LSE = unit * m + log d go to memory, for the band whose first query is `first`.  d == 0: the query sees no key.
__device__ inline void write(const State& s, T* o, float* lse, int first, int Sq, float unit = 1) {
    for (int r = 0; r < 2; ++r) {
        const int i = first + row_of(r);
        const float d = over_row(s.d[r], sum), factor = d == 0 ? 0 : 1 / d;
        if (i >= Sq) continue;
        Pair* const pairs = (Pair*)(o + (size_t)i * D);
        for (int n = 0; n < D / 8; ++n) pairs[4 * n + threadIdx.x % 4] = pair(s.O[n][2 * r] * factor, s.O[n][2 * r + 1] * factor);
        if (threadIdx.x % 4 == 0) lse[i] = unit * s.m[r] + logf(d);
    }
}
