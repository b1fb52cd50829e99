// Solution of exercise 10-d: greedy decoding, one warp a row: the most probable column of every row, and its probability.
//
// New:    against the exercise: 5 exchanges of (m, d, column).  The column goes with the larger m, and the lower one wins a tie.
// Launch: one row a block of 32 threads: grid M.
// Limits: rows may be shorter than 32, or masked in part; among equal logits the lowest column wins.  No NaN.
#include "common.h"

extern "C" __global__ void argmax(const float* __restrict__ x, float* __restrict__ p, int* __restrict__ column, int M, int N) {
    const int lane = threadIdx.x;
    x += (long long)blockIdx.x * N;

    float m = NEG_INF, d = 0;
    int at = N;                                     // no column yet
    for (int j = lane; j < N; j += 32) {
        const float x_j = x[j];
        if (x_j > m) {
            d = d * expf(m - x_j) + 1;
            m = x_j;
            at = j;
        } else if (x_j != NEG_INF) {
            d += expf(x_j - m);
        }
    }

    // --- your part
    for (int bit = 16; bit > 0; bit /= 2) {
        const float m_other = __shfl_xor_sync(0xffffffff, m, bit);
        const float d_other = __shfl_xor_sync(0xffffffff, d, bit);
        const int at_other = __shfl_xor_sync(0xffffffff, at, bit);
        if (m == NEG_INF && m_other == NEG_INF) continue;       // both empty; no shuffle is left out by that
        const float m_new = fmaxf(m, m_other);
        d = d * expf(m - m_new) + d_other * expf(m_other - m_new);
        if (m_other > m || (m_other == m && at_other < at)) at = at_other;
        m = m_new;
    }
    // --- end of your part

    if (lane == 0) {
        p[blockIdx.x] = 1 / d;                      // exp(m - m) / d
        column[blockIdx.x] = at;
    }
}
