// Exercise 08-d: softmax of short rows.  Every row has a warp of its own, and most of its lanes have nothing to do.
//
// Task:   let LANES neighbouring lanes share a row, so that a warp serves four rows at once.
// Launch: blocks of 64 threads, for 64 / LANES = 8 rows each: grid (M + 7) / 8.
// Limits: N up to LANES * PER_LANE = 64; any M.
#include "reduce.h"

#define LANES 8
#define PER_LANE 8

extern "C" __global__ void softmax_rows(const float* __restrict__ x, float* __restrict__ y, int M, int N) {
    // --- your part
    const int lane = threadIdx.x % 32;
    const int row = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    if (row >= M) return;                           // the whole warp returns
    x += (long long)row * N;
    y += (long long)row * N;

    float v[PER_LANE], m = NEG_INF;
    for (int i = 0; i < PER_LANE; ++i) v[i] = lane + 32 * i < N ? x[lane + 32 * i] : NEG_INF;
    for (int i = 0; i < PER_LANE; ++i) m = fmaxf(m, v[i]);      // a NaN that m drops still makes d NaN
    for (int bit = 16; bit > 0; bit /= 2) m = fmaxf(m, partner(m, bit));

    float d = 0;
    for (int i = 0; i < PER_LANE; ++i) d += expf(v[i] - m);
    for (int bit = 16; bit > 0; bit /= 2) d += partner(d, bit);

    for (int i = 0; i < PER_LANE; ++i)
        if (lane + 32 * i < N) y[lane + 32 * i] = expf(v[i] - m) / d;
    // --- end of your part
}
