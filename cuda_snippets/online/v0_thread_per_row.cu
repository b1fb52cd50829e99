// Online softmax V0: one thread computes one row, the maximum and the normalizer in the same pass.
//
// New:     against safe V0: passes 1 and 2 become one.  A larger maximum rescales the sum so far by exp(m - m_new).
// Traffic: 2 reads and 1 write per element, and 3 exponentials where safe V0 has 2.
// Launch:  256 threads a block, one row a thread: grid (M + 255) / 256.
// Limits:  any M, N up to 2^30; x and y do not overlap.  Every new maximum costs one rounding of the sum, so a row in
//          ascending order can be off by about N / 2^24.
#include "common.h"

extern "C" __global__ void softmax_online_v0(const float* __restrict__ x, float* __restrict__ y, int M, int N) {
    const long long row = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= M) return;
    x += row * N;
    y += row * N;

    float m = NEG_INF;                  // pass 1: the state (m, d), empty at first
    double sum = 0;                     // d, in double as in safe V0
    for (int j = 0; j < N; ++j) {
        const float x_j = x[j];
        if (x_j == NEG_INF) continue;   // adds nothing; and while m is -inf too, m - m_new would be NaN
        const float m_new = nan_max(m, x_j);
        sum = sum * expf(m - m_new) + expf(x_j - m_new);
        m = m_new;
    }
    const float d = sum;

    for (int j = 0; j < N; ++j) y[j] = expf(x[j] - m) / d;      // pass 2: the quotient
}
