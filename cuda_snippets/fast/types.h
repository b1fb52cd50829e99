// Rows of float, half or bf16, 16 bytes at a time; all arithmetic in float.  Compile with nothing, -DHALF or -DBF16.
#pragma once
#include "reduce.h"

#if defined(HALF)
#include <cuda_fp16.h>
typedef __half T;                                   // an element in memory,
typedef __half2 Pair;                               // and two neighbours
__device__ inline float2 floats(Pair p) { return __half22float2(p); }
__device__ inline Pair pair(float a, float b) { return __floats2half2_rn(a, b); }
#define MINUS_INF 0xfc00fc00                        // 4 bytes of -inf
#elif defined(BF16)
#include <cuda_bf16.h>
typedef __nv_bfloat16 T;
typedef __nv_bfloat162 Pair;
__device__ inline float2 floats(Pair p) { return __bfloat1622float2(p); }
__device__ inline Pair pair(float a, float b) { return __floats2bfloat162_rn(a, b); }
#define MINUS_INF 0xff80ff80
#else
typedef float T;
typedef float2 Pair;
__device__ inline float2 floats(Pair p) { return p; }
__device__ inline Pair pair(float a, float b) { return make_float2(a, b); }
#define MINUS_INF 0xff800000
#endif
#define WIDTH (16 / (int)sizeof(T))                 // elements in 16 bytes: 4 floats, or 8 of 2 bytes

// exp(x - m), as the power of two that the hardware has.  m is not -inf: -inf - -inf would be NaN.
__device__ inline float weight(float x, float m) { return exp2f((x - m) * 1.44269504f); }
__device__ inline float finite(float m) { return m == NEG_INF ? 0 : m; }

// 16 bytes of a row, in registers.
struct Piece {
    float v[WIDTH];

    __device__ Piece() {}
    __device__ Piece(uint4 bytes) {
        for (int j = 0; j < WIDTH; j += 2) {
            const float2 two = floats(((const Pair*)&bytes)[j / 2]);
            v[j] = two.x, v[j + 1] = two.y;
        }
    }
    __device__ uint4 bytes() const {
        uint4 b;
        for (int j = 0; j < WIDTH; j += 2) ((Pair*)&b)[j / 2] = pair(v[j], v[j + 1]);
        return b;
    }

    template <class F> __device__ Piece map(F f) const {                        // f of each element
        Piece p;
        for (int j = 0; j < WIDTH; ++j) p.v[j] = f(v[j]);
        return p;
    }
    template <class F> __device__ float fold(F f) const {                       // all elements into one, pair by pair
        Piece p = *this;
        for (int half = WIDTH / 2; half > 0; half /= 2)
            for (int j = 0; j < half; ++j) p.v[j] = f(p.v[j], p.v[j + half]);
        return p.v[0];
    }
    __device__ float largest() const { return fold([](float a, float b) { return fmaxf(a, b); }); }
    __device__ float sum() const { return fold([](float a, float b) { return a + b; }); }
};
