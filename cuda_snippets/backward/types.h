// Rows of float, half, bf16 or double, 16 bytes at a time.  Compile with nothing, -DHALF, -DBF16 or -DDOUBLE.
#pragma once
#include "common.h"

#if defined(HALF)
#include <cuda_fp16.h>
typedef __half T;                                   // an element in memory,
typedef float F;                                    // and what is computed with
typedef __half2 Pair;                               // two neighbours in memory,
typedef float2 Two;                                 // and as numbers
__device__ inline Two numbers(Pair p) { return __half22float2(p); }
__device__ inline Pair pair(F a, F b) { return __floats2half2_rn(a, b); }
__device__ inline Pair larger(Pair a, Pair b) { return __hmax2(a, b); }         // in each place; drops a NaN
#elif defined(BF16)
#include <cuda_bf16.h>
typedef __nv_bfloat16 T;
typedef float F;
typedef __nv_bfloat162 Pair;
typedef float2 Two;
__device__ inline Two numbers(Pair p) { return __bfloat1622float2(p); }
__device__ inline Pair pair(F a, F b) { return __floats2bfloat162_rn(a, b); }
__device__ inline Pair larger(Pair a, Pair b) { return __hmax2(a, b); }
#elif defined(DOUBLE)
typedef double T, F;
typedef double2 Pair, Two;
__device__ inline Two numbers(Pair p) { return p; }
__device__ inline Pair pair(F a, F b) { return make_double2(a, b); }
__device__ inline Pair larger(Pair a, Pair b) { return make_double2(max(a.x, b.x), max(a.y, b.y)); }
#else
typedef float T, F;
typedef float2 Pair, Two;
__device__ inline Two numbers(Pair p) { return p; }
__device__ inline Pair pair(F a, F b) { return make_float2(a, b); }
__device__ inline Pair larger(Pair a, Pair b) { return make_float2(max(a.x, b.x), max(a.y, b.y)); }
#endif
#define WIDTH (16 / (int)sizeof(T))                 // elements in 16 bytes: 8, 4 or 2

// 16 bytes of a row, as numbers.
struct Piece {
    F v[WIDTH];

    __device__ Piece() {}
    __device__ static Piece all(F value) {
        Piece p;
        for (int j = 0; j < WIDTH; ++j) p.v[j] = value;
        return p;
    }
    __device__ Piece(uint4 bytes) {
        for (int j = 0; j < WIDTH; j += 2) {
            const Two two = numbers(((const Pair*)&bytes)[j / 2]);
            v[j] = two.x, v[j + 1] = two.y;
        }
    }
    __device__ uint4 bytes() const {
        uint4 b;
        for (int j = 0; j < WIDTH; j += 2) ((Pair*)&b)[j / 2] = pair(v[j], v[j + 1]);
        return b;
    }
};

// Makes the compiler compute again what it needs of these bytes, instead of keeping it in more registers.
__device__ inline void forget_results(uint4& bytes) {
#ifndef __CPU_DEVICE__
    asm volatile("" : "+r"(bytes.x), "+r"(bytes.y), "+r"(bytes.z), "+r"(bytes.w));
#endif
}

// Do rows that start at a and at b reach addresses that are multiples of 16 together?
__device__ inline bool aligned_alike(const T* a, const T* b) { return ((size_t)a - (size_t)b) % 16 == 0; }

// A row of N elements as a head of 0 to WIDTH - 1, vectors of WIDTH at addresses that are multiples of 16, and a tail of 0 to
// WIDTH - 1; `ends` counts head and tail together.  Not `in_vectors`, the row is all head.
struct Split {
    int head, vectors, ends;
    __device__ Split(const T* row, int N, bool in_vectors = true) {
        head = in_vectors ? min(N, (int)(-(size_t)row % 16 / sizeof(T))) : N;
        vectors = (N - head) / WIDTH;
        ends = N - WIDTH * vectors;
    }
    __device__ int end(int e) const { return e < head ? e : e + WIDTH * vectors; }  // column of element e of the ends
};
