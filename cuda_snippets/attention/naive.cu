// Attention in three kernels: scores, softmax, weighted sum.
//
// New:     this is the first step.  The formula O = softmax(scale * Q K^T) V, one kernel an operation, fp32.
// Memory:  the score matrix S [BH, Sq, Sk] is written by the first kernel, read three times and overwritten by the
//          second, and read by the third.  At Sq = Sk = 131,072 it takes 64 GiB for one head.
// Launch:  attention_scores   grid (ceil(Sk / 32), ceil(Sq / 8), BH), block (32, 8)
//          attention_softmax  grid BH * Sq, block 256 (a power of two of at most 1024)
//          attention_output   grid (Sq, BH), block D
// Limits:  q [BH, Sq, D], k and v [BH, Sk, D] contiguous; BH up to 65,535; Sq up to 524,280; D up to 1,024 (-DD=...).
#include "common.h"

#ifndef D
#define D 64
#endif

// S[i][j] = scale * q_i . k_j, or -inf where query i does not see key j.  One thread a score.
extern "C" __global__ void attention_scores(const float* __restrict__ q, const float* __restrict__ k,
                                            float* __restrict__ s, int Sq, int Sk, int causal, float scale) {
    const int j = blockIdx.x * blockDim.x + threadIdx.x, i = blockIdx.y * blockDim.y + threadIdx.y;
    if (i >= Sq || j >= Sk) return;
    const size_t head = blockIdx.z, query = head * Sq + i;
    q += query * D;
    k += (head * Sk + j) * D;

    float dot = 0;
    for (int c = 0; c < D; ++c) dot += q[c] * k[c];
    const bool visible = !causal || j <= i + Sk - Sq;      // bottom-right: the last query sees every key
    s[query * Sk + j] = visible ? scale * dot : NEG_INF;
}

// Row by row, in place: s becomes p = exp(s - m) / d, and lse = m + log d.  Safe softmax V1, with one difference: a row
// that is all -inf (its query sees no key) becomes 0.
extern "C" __global__ void attention_softmax(float* __restrict__ s, float* __restrict__ lse, int Sk) {
    __shared__ float partial[1024];
    const int t = threadIdx.x, threads = blockDim.x;
    s += (size_t)blockIdx.x * Sk;

    float m = NEG_INF;
    for (int j = t; j < Sk; j += threads) m = nan_max(m, s[j]);
    partial[t] = m;
    __syncthreads();
    for (int half = threads / 2; half > 0; half /= 2) {
        if (t < half) partial[t] = nan_max(partial[t], partial[t + half]);
        __syncthreads();
    }
    m = partial[0];
    __syncthreads();
    const bool empty = m == NEG_INF;

    float d = 0;
    for (int j = t; j < Sk; j += threads) d += empty ? 0 : expf(s[j] - m);
    partial[t] = d;
    __syncthreads();
    for (int half = threads / 2; half > 0; half /= 2) {
        if (t < half) partial[t] += partial[t + half];
        __syncthreads();
    }
    d = partial[0];

    for (int j = t; j < Sk; j += threads) s[j] = empty ? 0 : expf(s[j] - m) / d;
    if (t == 0) lse[blockIdx.x] = m + logf(d);             // -inf + log 0 = -inf for an empty row
}

// O[i][c] = sum over j of p[i][j] * v[j][c].  One block a query, one thread a column.
extern "C" __global__ void attention_output(const float* __restrict__ p, const float* __restrict__ v,
                                            float* __restrict__ o, int Sq, int Sk) {
    const int c = threadIdx.x;
    const size_t head = blockIdx.y, query = head * Sq + blockIdx.x;
    p += query * Sk;
    v += head * Sk * D;

    float sum = 0;
    for (int j = 0; j < Sk; ++j) sum += p[j] * v[(size_t)j * D + c];
    o[query * D + c] = sum;
}
