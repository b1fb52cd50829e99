// Solution of exercise 13-d: tiled attention with the causal mask.
//
// New:    against the exercise: two limits.  The block walks as far as its last query sees, a thread counts as far as its own query does.
// Launch: grid ceil(Sq / QUERIES), block QUERIES.
// Limits: one head: q [Sq, D], k and v [Sk, D] -> o [Sq, D]; D = 32; any Sq and Sk from 1, also Sq > Sk.
#include "common.h"

#define D 32
#define QUERIES 64
#define KEYS 16

extern "C" __global__ void attention_causal(const float* __restrict__ q, const float* __restrict__ k,
                                            const float* __restrict__ v, float* __restrict__ o, int Sq, int Sk, float scale) {
    __shared__ float K[KEYS][D], V[KEYS][D];
    const int t = threadIdx.x, i = blockIdx.x * QUERIES + t;

    float Q[D], O[D], m = NEG_INF, d = 0;
    for (int c = 0; c < D; ++c) {
        Q[c] = i < Sq ? q[i * D + c] : 0;
        O[c] = 0;
    }

    // --- your part
    const int seen = i + Sk - Sq + 1;                                       // query i sees the keys 0 .. seen - 1
    const int keys = min((int)(blockIdx.x + 1) * QUERIES, Sq) + Sk - Sq;    // the block's last query sees the most
    for (int start = 0; start < keys; start += KEYS) {
        const int count = min(KEYS, keys - start);
        for (int n = t; n < count * D; n += QUERIES) {
            K[n / D][n % D] = k[start * D + n];
            V[n / D][n % D] = v[start * D + n];
        }
        __syncthreads();

        for (int j = 0; j < count && start + j < seen; ++j) {   // the diagonal may cross the tile
            float s = 0;
            for (int c = 0; c < D; ++c) s += Q[c] * K[j][c];
            s *= scale;
            const float m_new = nan_max(m, s), factor = expf(m - m_new), p = expf(s - m_new);
            d = d * factor + p;
            for (int c = 0; c < D; ++c) O[c] = O[c] * factor + p * V[j][c];
            m = m_new;
        }
        __syncthreads();
    }

    if (i >= Sq) return;
    for (int c = 0; c < D; ++c) o[i * D + c] = d == 0 ? 0 : O[c] / d;              // d == 0: no key is seen
    // --- end of your part
}
