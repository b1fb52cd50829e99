// Solution of exercise 09-c: softmax of rows of half, one warp a row.
//
// New:    against the exercise: an element becomes a float as it is loaded, and only the quotient is rounded to half.
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
    const float m = largest;
    float d = 0;
    for (int j = lane; j < N; j += 32) d += expf(__half2float(x[j]) - m);
    for (int bit = 16; bit > 0; bit /= 2) d += __shfl_xor_sync(0xffffffff, d, bit);
    for (int j = lane; j < N; j += 32) y[j] = __float2half(expf(__half2float(x[j]) - m) / d);
    // --- end of your part
}
