// Online softmax V1 with a branch: the sum is rescaled only when the maximum changes.
//
// New:     against V1: one exponential an element, and two at each new maximum, where V1 always computes two.  The lanes
//          of a warp wait for each other: a step is short only if none of the 32 meets a new maximum.
// Traffic: 2 reads and 1 write per element, as in V1.
// Launch:  as V1.
// Limits:  as V1.
#include "reduce.h"

extern "C" __global__ void softmax_online_v1_branch(const float* __restrict__ x, float* __restrict__ y, int M, int N) {
    __shared__ State partial[32];                   // one state a warp
    const int t = threadIdx.x, threads = blockDim.x;
    x += (long long)blockIdx.x * N;                 // 64 bits, so M * N may exceed 2^31
    y += (long long)blockIdx.x * N;

    // Pass 1: the state of this thread's elements, then of the row.
    State state = EMPTY;
    for (int j = t; j < N; j += threads) {
        const float x_j = x[j];
        if (x_j <= state.m && state.m != NEG_INF) state.d += expf(x_j - state.m);
        else state = merge(state, State{x_j, 1});   // a new maximum, a NaN, or only -inf so far
    }
    state = block_reduce<warp_merge>(state, EMPTY, partial);

    // Pass 2: the quotient.
    for (int j = t; j < N; j += threads) y[j] = expf(x[j] - state.m) / state.d;
}
