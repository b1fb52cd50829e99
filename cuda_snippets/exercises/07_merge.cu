// Exercise 07-c: the LSE of every row, one warp a row.  Each lane has the state of its own elements; only lane 0's counts so far.
//
// Task:   merge the states of the 32 lanes through shuffles.
// Launch: one row a block of 32 threads: grid M.
// Limits: rows may be shorter than 32, masked in part or in whole (LSE -inf), or hold a NaN (LSE NaN).
#include "common.h"

extern "C" __global__ void row_lse(const float* __restrict__ x, float* __restrict__ lse, int M, int N) {
    const int lane = threadIdx.x;
    x += (long long)blockIdx.x * N;

    float m = NEG_INF, d = 0;
    for (int j = lane; j < N; j += 32) {
        const float x_j = x[j];
        if (x_j == NEG_INF) continue;
        const float m_new = nan_max(m, x_j);
        d = d * expf(m - m_new) + expf(x_j - m_new);
        m = m_new;
    }

    // --- your part
    // Merge here.
    // --- end of your part

    if (lane == 0) lse[blockIdx.x] = m + logf(d);
}
