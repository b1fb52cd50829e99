// What a forward pass saves for the backward: the state (m, d) of each row, which holds its LSE = m + log d.
#pragma once
#include "types.h"

// As in reduce.h, in the type that is computed with.  Any pair with the same d * exp(m) says the same: (LSE, 1) too.
struct State { F m, d; };
#define EMPTY State{(F)NEG_INF, 0}                  // of no elements: merging with it changes nothing
#define NOT_A_NUMBER ((F)__int_as_float(0x7fc00000))

// What exponents are measured from: m, but 0 instead of -inf, because -inf - -inf would be NaN.
__device__ inline F origin(F m) { return m == (F)NEG_INF ? 0 : m; }

#ifdef DOUBLE
__device__ inline F exponential(F z) { return exp(z); }
__device__ inline F logarithm(F v) { return log(v); }
#else
// exp(z) as a power of 2, which the hardware has: 2 instructions instead of 8, and off by |z| / 2^24 of itself.
__device__ inline F exponential(F z) {
    z *= 1.44269504f;
#ifdef __CPU_DEVICE__
    return exp2f(z);
#else
    F power;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(z));
    return power;
#endif
}
__device__ inline F logarithm(F v) { return logf(v); }
#endif

// The state of two parts together.  max() may drop a NaN, but d keeps it.
__device__ inline State merge(State a, State b) {
    const F m = max(a.m, b.m), zero = origin(m);
    return {m, a.d * exponential(a.m - zero) + b.d * exponential(b.m - zero)};
}

// A row of only -inf has no probabilities: its gradient is 0.  (A NaN beside them makes d NaN.)
__device__ inline bool nothing_visible(State s) { return s.m == (F)NEG_INF && s.d == s.d; }

// The probability of x is exp(x - origin(m)) times this.
__device__ inline F share(State s) { return nothing_visible(s) ? 0 : 1 / s.d; }
