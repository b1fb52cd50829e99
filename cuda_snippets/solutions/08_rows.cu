// Solution of exercise 08-d: softmax of short rows, LANES lanes a row.
//
// New:    against the exercise: a warp serves four rows.  Exchanges over less than LANES stay among the lanes of a row.  A row behind
//         the last has no elements, and its lanes take part in the shuffles like all others.
// Launch: blocks of 64 threads, for 64 / LANES = 8 rows each: grid (M + 7) / 8.
// Limits: N up to LANES * PER_LANE = 64; any M.
#include "reduce.h"

#define LANES 8
#define PER_LANE 8

extern "C" __global__ void softmax_rows(const float* __restrict__ x, float* __restrict__ y, int M, int N) {
    // --- your part
    const int lane = threadIdx.x % LANES;
    const int row = blockIdx.x * (blockDim.x / LANES) + threadIdx.x / LANES;
    const int n = row < M ? N : 0;
    x += (long long)row * N;
    y += (long long)row * N;

    float v[PER_LANE], m = NEG_INF;
    for (int i = 0; i < PER_LANE; ++i) v[i] = lane + LANES * i < n ? x[lane + LANES * i] : NEG_INF;
    for (int i = 0; i < PER_LANE; ++i) m = fmaxf(m, v[i]);      // a NaN that m drops still makes d NaN
    for (int bit = LANES / 2; bit > 0; bit /= 2) m = fmaxf(m, partner(m, bit));

    float d = 0;
    for (int i = 0; i < PER_LANE; ++i) d += expf(v[i] - m);
    for (int bit = LANES / 2; bit > 0; bit /= 2) d += partner(d, bit);

    for (int i = 0; i < PER_LANE; ++i)
        if (lane + LANES * i < n) y[lane + LANES * i] = expf(v[i] - m) / d;
    // --- end of your part
}
