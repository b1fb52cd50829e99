// What several kernels share.
#pragma once

// -infinity by its bits: CuPy compiles with NVRTC, which knows neither INFINITY nor FLT_MAX.
#define NEG_INF __int_as_float(0xff800000)

// The larger of a and b, and NaN if one of them is NaN.  fmaxf(NEG_INF, NaN) is NEG_INF: it would lose the NaN.
__device__ inline float nan_max(float a, float b) {
    return a > b || a != a ? a : b;
}
