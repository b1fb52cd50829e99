// bfloat16; see small_floats.h.
#pragma once
typedef cuda_small<8> __nv_bfloat16;
typedef cuda_small2<8> __nv_bfloat162;
typedef __nv_bfloat16 nv_bfloat16;
typedef __nv_bfloat162 nv_bfloat162;
CUDA_SMALL_CONVERSIONS(__nv_bfloat16, __nv_bfloat162, 8, bfloat16)
inline __nv_bfloat162 make_bfloat162(__nv_bfloat16 x, __nv_bfloat16 y) { return __nv_bfloat162(x, y); }
