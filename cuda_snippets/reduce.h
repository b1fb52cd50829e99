// Reduction through shuffles: first the lanes of each warp, then the warps of the block.
#pragma once
#include "common.h"

// The state of a row, or of any part of it: the largest element m, and d, the sum of exp(x - m).
struct State { float m, d; };
#define EMPTY State{NEG_INF, 0}                     // of no elements: merging with it changes nothing

// What exponents are measured from: m, but 0 instead of -inf, because -inf - -inf would be NaN.
__device__ inline float origin(float m) { return m == NEG_INF ? 0 : m; }

// The state of two parts together.  A NaN or +inf in either part makes d NaN, and so it stays.
__device__ inline State merge(State a, State b) {
    const float m = nan_max(a.m, b.m);
    return {m, a.d * expf(a.m - origin(m)) + b.d * expf(b.m - origin(m))};
}

// What the lane holds whose number differs from ours in one bit.
__device__ inline float partner(float v, int bit) { return __shfl_xor_sync(0xffffffff, v, bit); }

// Over the 32 lanes of a warp, in 5 steps; every lane gets the result.
__device__ inline float warp_max(float v) {
    for (int bit = 16; bit > 0; bit /= 2) v = nan_max(v, partner(v, bit));
    return v;
}
__device__ inline float warp_sum(float v) {
    for (int bit = 16; bit > 0; bit /= 2) v += partner(v, bit);
    return v;
}
// The formula of merge() for 32 states at once: one exponential a lane, where 5 merges would take 10.
__device__ inline State warp_merge(State s) {
    const float m = warp_max(s.m);
    return {m, warp_sum(s.d * expf(s.m - origin(m)))};
}

// Over the threads of a block of 32, 64, ... or 1024; every thread gets the result.  `reduce` is one of the three above,
// `identity` what changes no result of it, `partial` shared memory for one value a warp.  All threads must have returned
// before `partial` is written again: use other memory, or a barrier.
template <auto reduce, class T> __device__ inline T block_reduce(T v, T identity, T* partial) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    v = reduce(v);
    if (lane == 0) partial[warp] = v;
    __syncthreads();
    v = identity;
    if (lane < warps) v = partial[lane];
    return reduce(v);                               // every warp does this for itself
}
