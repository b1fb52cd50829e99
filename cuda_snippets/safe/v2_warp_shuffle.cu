// Safe softmax V2: the threads of a block meet through warp shuffles.
//
// New:     against V1: the trees in shared memory become shuffles between registers.  First the 32 lanes of each warp, in
//          5 steps without a barrier; then the warps, through one float each in shared memory and a single barrier.
// Traffic: 3 reads and 1 write per element, as in V1.
// Launch:  one row a block: grid M.  The block is a multiple of 32 threads, at most 1024.
// Limits:  as V1.
#include "reduce.h"

extern "C" __global__ void softmax_safe_v2(const float* __restrict__ x, float* __restrict__ y, int M, int N) {
    __shared__ float maxima[32], sums[32];          // one value a warp
    const int t = threadIdx.x, threads = blockDim.x;
    x += (long long)blockIdx.x * N;                 // 64 bits, so M * N may exceed 2^31
    y += (long long)blockIdx.x * N;

    // Pass 1: the largest of this thread's elements, then of the row.
    float m = NEG_INF;
    for (int j = t; j < N; j += threads) m = nan_max(m, x[j]);
    m = block_reduce<warp_max>(m, NEG_INF, maxima);

    // Pass 2: the same for the normalizer.
    float d = 0;
    for (int j = t; j < N; j += threads) d += expf(x[j] - m);
    d = block_reduce<warp_sum>(d, 0.0f, sums);      // not in maxima, which a slow warp may still be reading

    // Pass 3: the quotient.
    for (int j = t; j < N; j += threads) y[j] = expf(x[j] - m) / d;
}
