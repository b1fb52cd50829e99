// Safe softmax V3: 16-byte loads and stores.
//
// New:     against V2: a thread moves four neighbouring floats with one instruction, and multiplies by 1 / d, because a
//          division takes about ten.  16-byte accesses need addresses that are multiples of 16, so a row is split into a
//          head of 0 to 3 floats, vectors of four, and a tail of 0 to 3.
// Traffic: 3 reads and 1 write per element, as in V2, in about a quarter of the instructions.
// Launch:  as V2.
// Limits:  as V1.  Any N and any start of a row; where x and y are not aligned alike, the row goes float by float.
#include "vector.h"

extern "C" __global__ void softmax_safe_v3(const float* __restrict__ x, float* __restrict__ y, int M, int N) {
    __shared__ float maxima[32], sums[32];          // one value a warp
    const int t = threadIdx.x, threads = blockDim.x;
    x += (long long)blockIdx.x * N;                 // 64 bits, so M * N may exceed 2^31
    y += (long long)blockIdx.x * N;
    const Split row(x, N, aligned_alike(x, y));
    const float4* __restrict__ x4 = (const float4*)(x + row.head);
    float4* __restrict__ y4 = (float4*)(y + row.head);

    // Pass 1: the largest of this thread's elements, then of the row.
    float m = NEG_INF;
    for (int e = t; e < row.ends; e += threads) m = nan_max(m, x[row.end(e)]);
    for (int k = t; k < row.vectors; k += threads) m = nan_max(m, max4(x4[k]));
    m = block_reduce<warp_max>(m, NEG_INF, maxima);

    // Pass 2: the same for the normalizer.
    float d = 0;
    for (int e = t; e < row.ends; e += threads) d += expf(x[row.end(e)] - m);
    for (int k = t; k < row.vectors; k += threads) d += sum4(exp4(x4[k], m));
    d = block_reduce<warp_sum>(d, 0.0f, sums);      // not in maxima, which a slow warp may still be reading

    // Pass 3: the quotient.
    const float factor = 1 / d;
    for (int e = t; e < row.ends; e += threads) y[row.end(e)] = expf(x[row.end(e)] - m) * factor;
    for (int k = t; k < row.vectors; k += threads) y4[k] = mul4(exp4(x4[k], m), factor);
}
