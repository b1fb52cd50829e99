// Online softmax V1: one block computes one row; states merge through shuffles.
//
// New:     against V0: each thread runs the recurrence over its own elements, neighbouring threads over neighbouring
//          elements.  Then the lanes of each warp, and the warps of the block, merge their states (m, d).  An element x
//          is the state (x, 1), so the recurrence is a merge too.
// Traffic: 2 reads and 1 write per element, and one barrier.
// Launch:  one row a block: grid M.  The block is a multiple of 32 threads, at most 1024.
// Limits:  any M, N up to 2^30; x and y do not overlap.  Every new maximum of a thread costs a few roundings of its sum,
//          so a row in ascending order can be off by about 4 * N / threads / 2^24.
#include "reduce.h"

extern "C" __global__ void softmax_online_v1(const float* __restrict__ x, float* __restrict__ y, int M, int N) {
    __shared__ State partial[32];                   // one state a warp
    const int t = threadIdx.x, threads = blockDim.x;
    x += (long long)blockIdx.x * N;                 // 64 bits, so M * N may exceed 2^31
    y += (long long)blockIdx.x * N;

    // Pass 1: the state of this thread's elements, then of the row.
    State state = EMPTY;
    for (int j = t; j < N; j += threads) state = merge(state, State{x[j], 1});
    state = block_reduce<warp_merge>(state, EMPTY, partial);

    // Pass 2: the quotient.
    for (int j = t; j < N; j += threads) y[j] = expf(x[j] - state.m) / state.d;
}
