// half and half2; see small_floats.h.
#pragma once
typedef cuda_small<5> __half;
typedef cuda_small2<5> __half2;
typedef __half half;
typedef __half2 half2;
CUDA_SMALL_CONVERSIONS(__half, __half2, 5, half)
inline __half2 make_half2(__half x, __half y) { return __half2(x, y); }
