// The update of the state with as few instructions as possible.
//
// Exponentials are powers of 2: exp(scale (s - m)) = 2^(factor (s - m)) with factor = scale log2 e.  One instruction computes a power, the
// scores need no scaling before, and m counts in units of unscaled scores.  That holds for scale > 0.  With -DBIAS or
// -DANY_SCALE the scores are scaled first, as before.
#pragma once
#include "attention/band.h"

#if defined(BIAS) || defined(ANY_SCALE)
#define SCALE_FIRST true
#else
#define SCALE_FIRST false
#endif

struct Lean {
    float scale, unit, factor;                      // what scores are multiplied with, what m counts in, and what makes exponents of 2
    __device__ Lean(float s) : scale(SCALE_FIRST ? s : 1), unit(SCALE_FIRST ? 1 : s), factor(unit * 1.44269504f) {}
};

// The state takes up the scores of a tile; S becomes P = 2^(factor (S - m)).  O is rescaled only if a maximum of the band has changed.
__device__ inline void update(State& s, Scores& S, const Lean& lean) {
    for (int r = 0; r < 2; ++r) {
        float m = s.m[r];
        for (auto& x : S) m = fmaxf(m, fmaxf(x[2 * r], x[2 * r + 1]));
        m = over_row(m, larger);
        const float base = origin(m), shrink = power_of_2(lean.factor * (s.m[r] - base));
        s.m[r] = m;
        s.d[r] *= shrink;
        if (__any_sync(~0u, shrink != 1))               // a NaN differs from 1
            for (auto& o : s.O) o[2 * r] *= shrink, o[2 * r + 1] *= shrink;
        for (auto& x : S)
            for (int c = 0; c < 2; ++c) s.d[r] += x[2 * r + c] = power_of_2(lean.factor * (x[2 * r + c] - base));
    }
}
