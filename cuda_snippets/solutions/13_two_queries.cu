// Solution of exercise 13-c: every thread serves two queries, i and i + THREADS.
//
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
    __shared__ float S[2][KEYS][THREADS];
    float Q[2][D], O[2][D], m[2] = {NEG_INF, NEG_INF}, d[2] = {0, 0};
    for (int r = 0; r < 2; ++r) {
        const int query = i + r * THREADS;
        for (int c = 0; c < D; ++c) {
            Q[r][c] = query < Sq ? q[query * D + c] : 0;
            O[r][c] = 0;
        }
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
        float m_new[2] = {m[0], m[1]};
        for (int j = 0; j < count; ++j) {
            float dot[2] = {0, 0};
            for (int c = 0; c < D; ++c) {
                const float key = K[j][c];      // fetched once, used twice
                for (int r = 0; r < 2; ++r) dot[r] += Q[r][c] * key;
            }
            for (int r = 0; r < 2; ++r) {
                S[r][j][t] = scale * dot[r];
                m_new[r] = nan_max(m_new[r], S[r][j][t]);
            }
        }
        for (int r = 0; r < 2; ++r) {
            const float factor = expf(m[r] - m_new[r]);
            d[r] *= factor;
            for (int c = 0; c < D; ++c) O[r][c] *= factor;
            m[r] = m_new[r];
        }
        for (int j = 0; j < count; ++j) {
            float p[2];
            for (int r = 0; r < 2; ++r) d[r] += p[r] = expf(S[r][j][t] - m[r]);
            for (int c = 0; c < D; ++c) {
                const float value = V[j][c];
                for (int r = 0; r < 2; ++r) O[r][c] += p[r] * value;
            }
        }
        __syncthreads();
    }

    for (int r = 0; r < 2; ++r) {
        const int query = i + r * THREADS;
        if (query < Sq)
            for (int c = 0; c < D; ++c) o[query * D + c] = O[r][c] / d[r];
    }
    // --- end of your part
}
