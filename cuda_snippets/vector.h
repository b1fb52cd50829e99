// Four neighbouring floats at a time: 16 bytes, the widest load and store of a thread.
#pragma once
#include "reduce.h"

__device__ inline float max4(float4 v) { return nan_max(nan_max(v.x, v.y), nan_max(v.z, v.w)); }
__device__ inline float sum4(float4 v) { return (v.x + v.y) + (v.z + v.w); }
__device__ inline float4 mul4(float4 v, float f) { return make_float4(v.x * f, v.y * f, v.z * f, v.w * f); }
__device__ inline float4 exp4(float4 v, float m) {
    return make_float4(expf(v.x - m), expf(v.y - m), expf(v.z - m), expf(v.w - m));
}

// The state of four elements.
__device__ inline State state4(float4 v) {
    const float m = max4(v);
    return {m, sum4(exp4(v, origin(m)))};
}

// Do rows that start at x and at y reach addresses that are multiples of 16 together?
__device__ inline bool aligned_alike(const float* x, const float* y) { return ((size_t)x - (size_t)y) % 16 == 0; }

// A row of N floats as a head of 0 to 3 floats, vectors of four at addresses that are multiples of 16, and a tail of 0 to
// 3 floats; `ends` counts head and tail together.  Not `in_vectors`, the row is all head.
struct Split {
    int head, vectors, ends;
    __device__ Split(const float* x, int N, bool in_vectors = true) {
        head = in_vectors ? min(N, (int)(-(size_t)x % 16 / 4)) : N;
        vectors = (N - head) / 4;
        ends = N - 4 * vectors;
    }
    __device__ int end(int e) const { return e < head ? e : e + 4 * vectors; }      // column of float e of the ends
};
