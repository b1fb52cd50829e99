// Safe softmax V1: one block computes one row.
//
// New:     the threads of a block share a row.  Neighbouring threads read neighbouring elements (coalesced), and the
//          per-thread results meet in shared memory: first a tree for the maximum, then a tree for the sum.
// Traffic: 3 reads and 1 write per element, as in V0.
// Launch:  one row a block: grid M.  The block is a power of two of at most 1024 threads, because the tree halves it.
// Limits:  any M, N up to 2^30; x and y do not overlap.  Float sums are enough here: the chain of additions is N / threads
//          + log2(threads) long, so the relative error stays below 1e-5 up to N = 128 * threads.
#include "common.h"

extern "C" __global__ void softmax_safe_v1(const float* __restrict__ x, float* __restrict__ y, int M, int N) {
    __shared__ float partial[1024];                 // one value a thread
    const int t = threadIdx.x, threads = blockDim.x;
    x += (long long)blockIdx.x * N;                 // 64 bits, so M * N may exceed 2^31
    y += (long long)blockIdx.x * N;

    // Pass 1: the largest of this thread's elements, then of the row.
    float m = NEG_INF;
    for (int j = t; j < N; j += threads) m = nan_max(m, x[j]);
    partial[t] = m;
    __syncthreads();
    for (int half = threads / 2; half > 0; half /= 2) {
        if (t < half) partial[t] = nan_max(partial[t], partial[t + half]);
        __syncthreads();                            // outside the if: every thread must come here
    }
    m = partial[0];
    __syncthreads();                                // all have read partial[0]; now it may be overwritten

    // Pass 2: the same tree for the normalizer.
    float d = 0;
    for (int j = t; j < N; j += threads) d += expf(x[j] - m);
    partial[t] = d;
    __syncthreads();
    for (int half = threads / 2; half > 0; half /= 2) {
        if (t < half) partial[t] += partial[t + half];
        __syncthreads();
    }
    d = partial[0];

    // Pass 3: the quotient.
    for (int j = t; j < N; j += threads) y[j] = expf(x[j] - m) / d;
}
