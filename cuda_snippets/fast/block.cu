// Fast softmax, medium rows: a block a row, the row in registers.
//
// New:     against online V3: elements of 4 or 2 bytes, the exponential as a power of two, a factor instead of divisions.
// Traffic: 1 read and 1 write per element.
// Launch:  grid M, THREADS threads (a multiple of 32) with THREADS * VECTORS * WIDTH >= N.
// Limits:  64 registers a thread of 1024: VECTORS up to 12 for float and 4 for half and bf16.  y may be x.
#include "fast/share.h"

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
softmax_block(const T* x, T* y, int M, int N) {
    __shared__ __align__(8) State partial[WARPS];
    const int t = threadIdx.x;
    const Row row(x, y, blockIdx.x, N);
    if (AHEAD) prefetch(x, (long long)blockIdx.x + AHEAD, M, N, 0, 1);

    Share share;
    share.load(row, t, THREADS);
    const State own = share.state();
    share.store(row, t, THREADS, own.m, join_team(own, partial));
}
