// Safe softmax V0: one thread computes one row.
//
// New:     this is the first step.  The three passes of safe softmax, written as a C loop.
// Traffic: 3 reads and 1 write per element.  The 32 threads of a warp read 32 different rows, so neighbouring threads
//          touch addresses N floats apart.
// Launch:  256 threads a block, one row a thread: grid (M + 255) / 256.
// Limits:  any M, N up to 2^30; x and y do not overlap.
#include "common.h"

extern "C" __global__ void softmax_safe_v0(const float* __restrict__ x, float* __restrict__ y, int M, int N) {
    const long long row = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= M) return;               // allowed here: no barrier follows
    x += row * N;                       // row is 64 bits wide, so M * N may exceed 2^31
    y += row * N;

    float m = NEG_INF;                  // pass 1: the largest element
    for (int j = 0; j < N; ++j) m = nan_max(m, x[j]);

    double sum = 0;                     // pass 2: the normalizer.  N floats added in a row lose digits: sum in double
    for (int j = 0; j < N; ++j) sum += expf(x[j] - m);
    const float d = sum;

    for (int j = 0; j < N; ++j) y[j] = expf(x[j] - m) / d;      // pass 3: the quotient
}
