// Solution of exercise 05-c: the range of every row, largest minus smallest element.
//
// New:    against the exercise: two barriers.  One lets every thread read partial[0] before it is overwritten, the other
//         lets each level of the second tree see the level before.
// Launch: one row a block: grid M; the block is a power of two of at most 1024 threads.
#include "common.h"

extern "C" __global__ void row_range(const float* __restrict__ x, float* __restrict__ y, int M, int N) {
    __shared__ float partial[1024];                 // one value a thread
    const int t = threadIdx.x, threads = blockDim.x;
    x += (long long)blockIdx.x * N;

    // --- your part
    float high = NEG_INF;
    for (int j = t; j < N; j += threads) high = nan_max(high, x[j]);
    partial[t] = high;
    __syncthreads();
    for (int half = threads / 2; half > 0; half /= 2) {
        if (t < half) partial[t] = nan_max(partial[t], partial[t + half]);
        __syncthreads();
    }
    high = partial[0];
    __syncthreads();                                // all have read partial[0]; now it may be overwritten

    float low = NEG_INF;                            // the smallest element is minus the largest of -x
    for (int j = t; j < N; j += threads) low = nan_max(low, -x[j]);
    partial[t] = low;
    __syncthreads();
    for (int half = threads / 2; half > 0; half /= 2) {
        if (t < half) partial[t] = nan_max(partial[t], partial[t + half]);
        __syncthreads();                            // outside the if: every thread must come here
    }
    if (t == 0) y[blockIdx.x] = high + partial[0];
    // --- end of your part
}
