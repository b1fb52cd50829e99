// Safe softmax V4: two passes over the row.
//
// New:     against V3: passes 1 and 2 become one.  Each thread subtracts the largest element that it has met itself, and
//          rescales its sum when it meets a larger one; once the row's maximum is known, one factor corrects its sum.
// Traffic: 2 reads and 1 write per element.
// Launch:  as V2.
// Limits:  as V3.
#include "vector.h"

extern "C" __global__ void softmax_safe_v4(const float* __restrict__ x, float* __restrict__ y, int M, int N) {
    __shared__ float maxima[32], sums[32];          // one value a warp
    const int t = threadIdx.x, threads = blockDim.x;
    x += (long long)blockIdx.x * N;                 // 64 bits, so M * N may exceed 2^31
    y += (long long)blockIdx.x * N;
    const Split row(x, N, aligned_alike(x, y));
    const float4* __restrict__ x4 = (const float4*)(x + row.head);
    float4* __restrict__ y4 = (float4*)(y + row.head);

    // Pass 1: maximum and sum of this thread's elements, then of the row.
    State own = EMPTY;
    for (int e = t; e < row.ends; e += threads) own = merge(own, State{x[row.end(e)], 1});
    for (int k = t; k < row.vectors; k += threads) own = merge(own, state4(x4[k]));
    const float m = block_reduce<warp_max>(own.m, NEG_INF, maxima);
    const float d = block_reduce<warp_sum>(own.d * expf(own.m - m), 0.0f, sums);

    // Pass 2: the quotient.
    const float factor = 1 / d;
    for (int e = t; e < row.ends; e += threads) y[row.end(e)] = expf(x[row.end(e)] - m) * factor;
    for (int k = t; k < row.vectors; k += threads) y4[k] = mul4(exp4(x4[k], m), factor);
}
