// Exercise 13-c: let every thread serve two queries, i and i + THREADS.
//
// This kernel is right for the first of them and leaves the second alone.  Once both are served in one walk over the keys,
// each number fetched from K or V is used twice.  The launch stays, and no thread may fetch more from shared memory than now.
// Launch: grid ceil(Sq / QUERIES), block THREADS.
// Limits: one head: q [Sq, D], k and v [Sk, D] -> o [Sq, D]; D = 32; any Sq and Sk from 1; every query sees every key.
#include "common.h"

#define D 32
#define THREADS 64
#define QUERIES (2 * THREADS)
#define KEYS 16

extern "C" __global__ void attention_two_queries(const float* __restrict__ q, const float* __restrict__ k,
                                                 const float* __restrict__ v, float* __restrict__ o, int Sq, int Sk, float scale) {
    __shared__ float K[KEYS][D], V[KEYS][D];
    const int t = threadIdx.x, i = blockIdx.x * QUERIES + t;

    // --- your part
    __shared__ float S[KEYS][THREADS];           // column t of S belongs to thread t alone
    float Q[D], O[D], m = NEG_INF, d = 0;
    for (int c = 0; c < D; ++c) {
        Q[c] = i < Sq ? q[i * D + c] : 0;
        O[c] = 0;
    }
    // --- end of your part

    for (int start = 0; start < Sk; start += KEYS) {
        const int count = min(KEYS, Sk - start);
        for (int n = t; n < count * D; n += THREADS) {
            K[n / D][n % D] = k[start * D + n];
            V[n / D][n % D] = v[start * D + n];
        }
        __syncthreads();

        // --- your part
        float m_new = m;
        for (int j = 0; j < count; ++j) {
            float dot = 0;
            for (int c = 0; c < D; ++c) dot += Q[c] * K[j][c];
            S[j][t] = scale * dot;
            m_new = nan_max(m_new, S[j][t]);
        }
        const float factor = expf(m - m_new);
        d *= factor;
        for (int c = 0; c < D; ++c) O[c] *= factor;
        for (int j = 0; j < count; ++j) {
            const float p = expf(S[j][t] - m_new);
            d += p;
            for (int c = 0; c < D; ++c) O[c] += p * V[j][c];
        }
        m = m_new;
        __syncthreads();
    }

    if (i >= Sq) return;
    for (int c = 0; c < D; ++c) o[i * D + c] = O[c] / d;
    // --- end of your part
}
