// Online softmax V4: as many blocks as the GPU holds at once, for any number of rows.
//
// New:     against V2: a block goes from row to row, with a stride of the whole grid, instead of ending after one.
// Traffic: 2 reads and 1 write per element, as in V2.
// Launch:  any grid; best as many blocks as the GPU holds at once.  The block is a multiple of 32 threads, at most 1024.
// Limits:  as V2.
#include "vector.h"

extern "C" __global__ void softmax_online_v4(const float* __restrict__ x, float* __restrict__ y, int M, int N) {
    __shared__ State partial[32];                   // one state a warp
    const int t = threadIdx.x, threads = blockDim.x;
    const long long stride = (long long)gridDim.x * N;          // 64 bits, so M * N may exceed 2^31
    x += (long long)blockIdx.x * N;
    y += (long long)blockIdx.x * N;

    for (long long i = blockIdx.x; i < M; i += gridDim.x, x += stride, y += stride) {
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
        __syncthreads();                            // all have read partial; the next row may overwrite it
    }
}
