// The state takes up a tile without looking for its maximum: exponents are measured from an origin m that need not be one.
//
// Of P = 2^(factor S - m), d = sum P and O = sum P V only O / d and m + log2 d are asked for in the end, and there m cancels.  It must
// not be so low that P overflows, nor so high that P vanishes.  So m is chosen SLACK powers of 2 above the largest exponent, and serves
// until a score passes it.  One bit of each difference tells: its sign.
#pragma once

#ifndef SLACK
#define SLACK 4                                 // P is 2^-SLACK at most when m is chosen, and may grow to 1
#endif

#ifndef BY_FMA
#define BY_FMA 0                                // of 16 powers of 2, so many are computed by FMA
#endif

// What m is counted in, for the LSE: powers of 2.
__device__ inline float unit(float) { return 0.693147181f; }

// 2^x for x < 0 without the unit for it, which for D = 64 has as much to do as the tensor cores: 2^floor(x) goes into the exponent, and a
// polynomial gives 2^f for the fraction f.  Relative error below 5e-6; subnormal below 2^-126.
__device__ __forceinline__ float power_by_fma(float x) {
    x = fmaxf(x, -127);
    const float shifted = __fadd_rd(x, 12582912), f = x - (shifted - 12582912);     // 1.5 * 2^23: floats there are whole numbers
    const float p = fmaf(fmaf(fmaf(fmaf(0.01342671f, f, 0.05224244f), f, 0.2412802f), f, 0.6930448f), f, 1);
    return __uint_as_float(__float_as_uint(p) + (__float_as_uint(shifted) << 23));
}

// The rare case.  Rows whose differences x are not all negative, and rows that have seen no key, get another m, and x counts from it.
__device__ __forceinline__ void choose_origin(State& s, Scores& x, float (&shrink)[2]) {
    for (int r = 0; r < 2; ++r) {
        float top = NEG_INF;
#pragma unroll
        for (int n = 0; n < KEYS / 8; ++n)
            for (int c = 2 * r; c < 2 * r + 2; ++c) {
                top = fmaxf(top, x[n][c]);
                if (!(x[n][c] < -NEG_INF)) s.d[r] = x[n][c] - x[n][c];      // inf or NaN: NaN, which d keeps
            }
        top = over_row(top, larger);
        const bool first = s.m[r] == NEG_INF;
        shrink[r] = 1;
        if (top == NEG_INF || (top < 0 && !first)) continue;
        const float rise = top + SLACK, m = origin(s.m[r]) + rise;
        if (!first) shrink[r] = power_of_2(s.m[r] - m), s.d[r] *= shrink[r];
        s.m[r] = m;
#pragma unroll
        for (int n = 0; n < KEYS / 8; ++n) x[n][2 * r] -= rise, x[n][2 * r + 1] -= rise;
    }
}

// S becomes P, with factor = scale log2 e > 0.  If the result is true, O must be multiplied with `shrink`.
__device__ __forceinline__ bool update(State& s, Scores& S, float factor, float (&shrink)[2]) {
    const float m[2] = {origin(s.m[0]), origin(s.m[1])};
    unsigned signs[4] = {~0u, ~0u, ~0u, ~0u};       // four chains: an instruction needs the result of the fourth before it
#pragma unroll
    for (int n = 0; n < KEYS / 8; ++n)
#pragma unroll
        for (int c = 0; c < 4; ++c) signs[c] &= __float_as_uint(S[n][c] = fmaf(S[n][c], factor, -m[c / 2]));
    const bool negative = (signs[0] & signs[1] & signs[2] & signs[3]) >> 31;
    const bool chosen = __any_sync(~0u, !negative || s.m[0] == NEG_INF || s.m[1] == NEG_INF);
    if (chosen) choose_origin(s, S, shrink);
#pragma unroll
    for (int n = 0; n < KEYS / 8; ++n)
#pragma unroll
        for (int c = 0; c < 4; ++c) s.d[c / 2] += S[n][c] = (4 * n + c) % 16 < BY_FMA ? power_by_fma(S[n][c]) : power_of_2(S[n][c]);
    return chosen;
}
