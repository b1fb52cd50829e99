// Elements of rows, and 16 bytes of them at a time.  They are float or, with -DHALF, -DBF16 or -DDOUBLE, another type.
#pragma once
#include "common.h"

#if defined(HALF)
#include <cuda_fp16.h>
typedef __half T;                                   // an element in memory,
typedef __half2 Pair;                               // two neighbours,
typedef float F;                                    // and what is computed with
__device__ inline float2 numbers(Pair p) { return __half22float2(p); }
__device__ inline Pair pair(F a, F b) { return __floats2half2_rn(a, b); }
#define MINUS_INF 0xfc00fc00                        // 4 bytes of -inf
#elif defined(BF16)
#include <cuda_bf16.h>
typedef __nv_bfloat16 T;
typedef __nv_bfloat162 Pair;
typedef float F;
__device__ inline float2 numbers(Pair p) { return __bfloat1622float2(p); }
__device__ inline Pair pair(F a, F b) { return __floats2bfloat162_rn(a, b); }
#define MINUS_INF 0xff80ff80
#elif defined(DOUBLE)
typedef double T, F;
typedef double2 Pair;
__device__ inline double2 numbers(Pair p) { return p; }
__device__ inline Pair pair(F a, F b) { return make_double2(a, b); }
#else
typedef float T, F;
typedef float2 Pair;
__device__ inline float2 numbers(Pair p) { return p; }
__device__ inline Pair pair(F a, F b) { return make_float2(a, b); }
#define MINUS_INF 0xff800000
#endif
#define WIDTH (16 / (int)sizeof(T))                 // elements in 16 bytes: 4 floats, 8 of 2 bytes, or 2 doubles

// 16 bytes of a row, as numbers in registers.
struct Piece {
    F v[WIDTH];

    __device__ Piece() {}
    __device__ Piece(uint4 bytes) {
        for (int j = 0; j < WIDTH; j += 2) {
            const auto two = numbers(((const Pair*)&bytes)[j / 2]);
            v[j] = two.x, v[j + 1] = two.y;
        }
    }
    __device__ static Piece all(F value) {
        Piece p;
        for (int j = 0; j < WIDTH; ++j) p.v[j] = value;
        return p;
    }
    __device__ uint4 bytes() const {
        uint4 b;
        for (int j = 0; j < WIDTH; j += 2) ((Pair*)&b)[j / 2] = pair(v[j], v[j + 1]);
        return b;
    }

    template <class Function> __device__ Piece map(Function f) const {          // f of each element
        Piece p;
        for (int j = 0; j < WIDTH; ++j) p.v[j] = f(v[j]);
        return p;
    }
    template <class Function> __device__ F fold(Function f) const {             // all elements into one, pair by pair
        Piece p = *this;
        for (int half = WIDTH / 2; half > 0; half /= 2)
            for (int j = 0; j < half; ++j) p.v[j] = f(p.v[j], p.v[j + half]);
        return p.v[0];
    }
    __device__ F largest() const { return fold([](F a, F b) { return max(a, b); }); }       // drops a NaN
    __device__ F sum() const { return fold([](F a, F b) { return a + b; }); }
};
