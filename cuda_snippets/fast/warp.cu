// Fast softmax, short rows: LANES neighbouring threads of a warp share a row.
//
// New:     against block.cu: a block holds several rows, no thread waits at a barrier, and no shared memory is needed.
// Traffic: 1 read and 1 write per element.
// Launch:  THREADS threads a block, THREADS / LANES rows: grid (M + rows - 1) / rows.  LANES * VECTORS * WIDTH >= N.
// Limits:  LANES is a power of two up to 32, and at least 2 * WIDTH - 2 without -DALIGNED.  y may be x.
#include "fast/share.h"

#ifndef LANES
#define LANES 32
#endif

extern "C" __global__ void __launch_bounds__(THREADS)
softmax_warp(const T* x, T* y, int M, int N) {
    const int t = threadIdx.x % LANES;
    const long long number = (long long)blockIdx.x * (THREADS / LANES) + threadIdx.x / LANES;
    const Row row(x, y, number, number < M ? N : 0);                            // 0: nothing to do but to join the shuffles

    Share share;
    share.load(row, t, LANES);
    float m = share.largest();
    for (int bit = LANES / 2; bit > 0; bit /= 2) m = fmaxf(m, partner(m, bit));
    float d = share.weigh(m);
    for (int bit = LANES / 2; bit > 0; bit /= 2) d += partner(d, bit);
    share.store(row, t, LANES, m, State{m, d});
}
