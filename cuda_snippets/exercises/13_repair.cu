// Exercise 13-b: tiled attention with four mistakes.  Repair them.
//
// It is right for some sizes and some scores.  It has to be right for all of them, and free of races.
// Launch: grid ceil(Sq / QUERIES), block QUERIES.
// Limits: one head: q [Sq, D], k and v [Sk, D] -> o [Sq, D]; D = 32; any Sq and Sk from 1; every query sees every key.
#include "common.h"

#define D 32
#define QUERIES 64
#define KEYS 16

extern "C" __global__ void attention_repair(const float* __restrict__ q, const float* __restrict__ k,
                                            const float* __restrict__ v, float* __restrict__ o, int Sq, int Sk, float scale) {
    __shared__ float K[KEYS][D], V[KEYS][D];
    const int t = threadIdx.x, i = blockIdx.x * QUERIES + t;

    // --- your part
    if (i >= Sq) return;

    float Q[D], O[D], m = 0, d = 0;
    for (int c = 0; c < D; ++c) {
        Q[c] = q[i * D + c];
        O[c] = 0;
    }

    for (int start = 0; start < Sk; start += KEYS) {
        const int count = KEYS;
        for (int n = t; n < count * D; n += QUERIES) {
            K[n / D][n % D] = k[start * D + n];
            V[n / D][n % D] = v[start * D + n];
        }
        __syncthreads();

        for (int j = 0; j < count; ++j) {
            float s = 0;
            for (int c = 0; c < D; ++c) s += Q[c] * K[j][c];
            s *= scale;
            const float m_new = nan_max(m, s), factor = expf(m - m_new), p = expf(s - m_new);
            d = d * factor + p;
            for (int c = 0; c < D; ++c) O[c] = O[c] * factor + p * V[j][c];
            m = m_new;
        }
    }

    for (int c = 0; c < D; ++c) o[i * D + c] = O[c] / d;
    // --- end of your part
}
