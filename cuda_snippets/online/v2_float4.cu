// Online softmax V2: 16-byte loads and stores.
//
// New:     against V1: a thread moves four neighbouring floats with one instruction and merges the state of all four: 6
//          exponentials instead of 8.  It multiplies by 1 / d, because a division takes about ten instructions.  16-byte
//          accesses need addresses that are multiples of 16, so a row is split into a head of 0 to 3 floats, vectors of
//          four, and a tail of 0 to 3.
// Traffic: 2 reads and 1 write per element, as in V1, in about a quarter of the instructions.
// Launch:  as V1.
// Limits:  as V1.  Any N and any start of a row; where x and y are not aligned alike, the row goes float by float.
#include "vector.h"

extern "C" __global__ void softmax_online_v2(const float* __restrict__ x, float* __restrict__ y, int M, int N) {
    __shared__ State partial[32];                   // one state a warp
    const int t = threadIdx.x, threads = blockDim.x;
    x += (long long)blockIdx.x * N;                 // 64 bits, so M * N may exceed 2^31
    y += (long long)blockIdx.x * N;
    const Split row(x, N, aligned_alike(x, y));
    const float4* __restrict__ x4 = (const float4*)(x + row.head);
    float4* __restrict__ y4 = (float4*)(y + row.head);

    // Pass 1: the state of this thread's elements, then of the row.
    State state = EMPTY;
    for (int e = t; e < row.ends; e += threads) state = merge(state, State{x[row.end(e)], 1});
    for (int k = t; k < row.vectors; k += threads) state = merge(state, state4(x4[k]));
    state = block_reduce<warp_merge>(state, EMPTY, partial);

    // Pass 2: the quotient.
    const float m = state.m, factor = 1 / state.d;
    for (int e = t; e < row.ends; e += threads) y[row.end(e)] = expf(x[row.end(e)] - m) * factor;
    for (int k = t; k < row.vectors; k += threads) y4[k] = mul4(exp4(x4[k], m), factor);
}
