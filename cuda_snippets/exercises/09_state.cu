// Exercise 09-c: softmax of rows of half, one warp a row.  Everything in it is half, from the difference to the quotient.
//
// Task:   make every y the exact softmax, rounded to half once.  x and y stay half.
// Launch: one row a block of 32 threads: grid M.
// Limits: any N.  Rows may be masked in part.
#include <cuda_fp16.h>
#include "common.h"

extern "C" __global__ void softmax_half(const __half* __restrict__ x, __half* __restrict__ y, int M, int N) {
    const int lane = threadIdx.x;
    x += (long long)blockIdx.x * N;
    y += (long long)blockIdx.x * N;

    float largest = NEG_INF;                        // a maximum is chosen, not computed: it is exact in any format
    for (int j = lane; j < N; j += 32) largest = nan_max(largest, __half2float(x[j]));
    for (int bit = 16; bit > 0; bit /= 2) largest = nan_max(largest, __shfl_xor_sync(0xffffffff, largest, bit));

    // --- your part
    const __half m = __float2half(largest);
    __half d = __float2half(0);
    for (int j = lane; j < N; j += 32) d = __hadd(d, hexp(__hsub(x[j], m)));
    for (int bit = 16; bit > 0; bit /= 2) d = __hadd(d, __float2half(__shfl_xor_sync(0xffffffff, __half2float(d), bit)));
    for (int j = lane; j < N; j += 32) y[j] = __hdiv(hexp(__hsub(x[j], m)), d);
    // --- end of your part
}
