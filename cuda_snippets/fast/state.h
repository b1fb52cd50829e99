// States (m, d) of parts of a row, merged with the same power of two as the elements.
#pragma once
#include "reduce.h"

// exp(x - m), as the power of two that the hardware has.  m is not -inf: -inf - -inf would be NaN.
__device__ inline float weight(float x, float m) { return exp2f((x - m) * 1.44269504f); }
__device__ inline float finite(float m) { return m == NEG_INF ? 0 : m; }

// The states of two parts together.  A part of only -inf has d = 0.  fmaxf may drop a NaN from m; d keeps it.
__device__ inline State join(State a, State b) {
    const float m = fmaxf(a.m, b.m), base = finite(m);
    return {m, a.d * weight(a.m, base) + b.d * weight(b.m, base)};
}

// The same for `lanes` neighbouring threads, a power of two; all of them get the result.
template <int lanes> __device__ inline State join_lanes(State s) {
    float m = s.m;
    for (int bit = lanes / 2; bit > 0; bit /= 2) m = fmaxf(m, partner(m, bit));
    float d = s.d * weight(s.m, finite(m));
    for (int bit = lanes / 2; bit > 0; bit /= 2) d += partner(d, bit);
    return {m, d};
}

__device__ constexpr int power_of_two(int n) { return n <= 1 ? 1 : 2 * power_of_two((n + 1) / 2); }        // the first that is >= n
