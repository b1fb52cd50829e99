// Exercise 05-c: the range of every row, largest minus smallest element.  Barriers are missing.
//
// Launch: one row a block: grid M; the block is a power of two of at most 1024 threads.
// Task:   put in the barriers that are missing, and no other change.  check() names one race after the other.
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

    float low = NEG_INF;                            // the smallest element is minus the largest of -x
    for (int j = t; j < N; j += threads) low = nan_max(low, -x[j]);
    partial[t] = low;
    __syncthreads();
    for (int half = threads / 2; half > 0; half /= 2) {
        if (t < half) partial[t] = nan_max(partial[t], partial[t + half]);
    }
    if (t == 0) y[blockIdx.x] = high + partial[0];
    // --- end of your part
}
