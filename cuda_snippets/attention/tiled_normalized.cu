// Tiled attention with O normalised after every tile: the update of the articles.
//
// New:     against tiled.cu: O is always divided by the d so far, so every tile undoes the old division, and divides its
//          own weights by the new d.  The same result, more arithmetic and more roundings.  Everything else is unchanged.
// Memory:  as tiled.cu.
// Launch:  as tiled.cu.
// Limits:  as tiled.cu.
#include "attention/features.h"

#ifndef D
#define D 64                                    // the head dimension: compile with -DD=...
#endif
#ifndef KEYS
#define KEYS (D <= 128 ? 32 : 16)               // keys in a tile
#endif
#define LANES (D <= 64 ? 1 : D <= 128 ? 2 : 4)  // neighbouring threads that share a query, so that q and O fit registers
#ifndef QUERIES
#define QUERIES (128 / LANES)                   // queries in a block
#endif
#define THREADS (QUERIES * LANES)
#define COLUMNS (D / LANES)                     // columns of q and O that a thread owns
static_assert(D % (4 * LANES) == 0 && D <= 256 && THREADS % 32 == 0, "see Limits");

extern "C" __global__ void __launch_bounds__(THREADS)
attention_tiled_normalized(const float* __restrict__ q, const float* __restrict__ k, const float* __restrict__ v,
                float* __restrict__ o, float* __restrict__ lse, int Sq, int Sk, int causal, float scale WINDOW_PARAMETER BIAS_PARAMETERS) {
    __shared__ __align__(16) float K[KEYS][D], V[KEYS][D];
    __shared__ float S[KEYS][THREADS];          // column t belongs to thread t alone
    const int t = threadIdx.x, lane = t % LANES, first = blockIdx.x * QUERIES, i = first + t / LANES;
    const size_t head = blockIdx.y;
    q += (head * Sq + i) * D;
    o += (head * Sq + i) * D;
    k += head / GROUP * Sk * D;
    v += head / GROUP * Sk * D;
    const Bias added = BIAS_OF(head);
    auto column = [lane](int c) { return (c / 4 * LANES + lane) * 4 + c % 4; };   // four neighbours, then the next lane

    float Q[COLUMNS], O[COLUMNS], m = NEG_INF, d = 0;           // the state: no key seen yet
    for (int c = 0; c < COLUMNS; ++c) {
        Q[c] = i < Sq ? q[column(c)] : 0;       // a thread past the last query works along, so that it meets the barriers
        O[c] = 0;
    }
    const Keys seen = seen_by(i, Sq, Sk, causal, window);       // all keys, if there is neither mask nor window
    const int from = seen_by(first, Sq, Sk, causal, window).first;      // the block's first query sees the first key,
    const int last = min(first + QUERIES, Sq) - 1;              // its last query the last one
    const int keys = seen_by(last, Sq, Sk, causal, window).end;

    for (int start = 0; start < keys; start += KEYS) {
        if (start + KEYS <= from) continue;     // a tile before every window
        const int count = min(KEYS, keys - start);
        for (int n = t; n < count * D; n += THREADS) {
            K[n / D][n % D] = k[(size_t)start * D + n];
            V[n / D][n % D] = v[(size_t)start * D + n];
        }
        __syncthreads();

        float m_new = m;
        for (int j = 0; j < count; ++j) {
            float dot = 0;
            for (int c = 0; c < COLUMNS; ++c) dot += Q[c] * K[j][column(c)];
            for (int other = LANES / 2; other > 0; other /= 2) dot += __shfl_xor_sync(0xffffffff, dot, other);
            S[j][t] = seen.has(start + j) ? scale * dot + added(i, start + j) : NEG_INF;
            m_new = nan_max(m_new, S[j][t]);
        }
        if (m_new != NEG_INF) {                 // else this query has not seen a key yet, and m - m_new would be NaN
            const float factor = expf(m - m_new);
            float d_new = d * factor;
            for (int j = 0; j < count; ++j) {
                S[j][t] = expf(S[j][t] - m_new);
                d_new += S[j][t];
            }
            for (int c = 0; c < COLUMNS; ++c) O[c] *= d * factor / d_new;
            for (int j = 0; j < count; ++j) {
                const float p = S[j][t] / d_new;
                for (int c = 0; c < COLUMNS; ++c) O[c] += p * V[j][column(c)];
            }
            m = m_new;
            d = d_new;
        }
        __syncthreads();                        // all are done with this tile before the next one overwrites it
    }

    if (i >= Sq) return;
    for (int c = 0; c < COLUMNS; ++c) o[column(c)] = O[c];       // still 0 where the query sees no key
    if (lane == 0) lse[head * Sq + i] = m + logf(d);
}
