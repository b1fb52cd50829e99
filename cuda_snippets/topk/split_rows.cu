// Softmax and top-k for few rows: several blocks share a row, and a second kernel merges what they found.
//
// New:     against online_fused.cu: a block that ends writes its state and its candidates instead of a result.  The merge is
//          the one that the warps of a block do.
// Traffic: 1 read per element; per block of a row, K candidates of 8 bytes and a state are written and read again.
// Launch:  softmax_topk_part: grid (splits, M), block 32 * WARPS threads.  Then softmax_topk_merge: grid M, block 32 * WARPS.
// Limits:  as online_fused.cu, and M up to 65,535.
#include "topk/online.h"

extern "C" __global__ void __launch_bounds__(32 * WARPS)
softmax_topk_part(const T* __restrict__ x, Key* __restrict__ keys, State* __restrict__ states, int N, float inverse) {
    __shared__ Exchange shared;
    const int warp = threadIdx.x / 32, splits = gridDim.x;
    const long long row = blockIdx.y, part = row * splits + blockIdx.x;
    const float scale = inverse * LOG2_E;

    Candidates best;
    State state = scan(x + row * N, N, blockIdx.x * WARPS + warp, splits * WARPS, scale, best);
    block_merge(state, best, scale, shared);
    if (warp == 0) best.store(keys + part * K);
    if (threadIdx.x == 0) states[part] = state;
}

extern "C" __global__ void __launch_bounds__(32 * WARPS)
softmax_topk_merge(const Key* __restrict__ keys, const State* __restrict__ states, float* __restrict__ p,
                   int* __restrict__ indices, float* __restrict__ lse, int splits, float inverse) {
    __shared__ Exchange shared;
    const int warp = threadIdx.x / 32;
    const long long row = blockIdx.x;
    const float scale = inverse * LOG2_E;

    Candidates best;
    State state = EMPTY;
    for (int i = warp; i < splits; i += WARPS) {
        const long long part = row * splits + i;
        best.merge(keys + part * K);
        state = merge(state, states[part], scale);
    }
    block_merge(state, best, scale, shared);
    if (warp == 0) write(state, best, inverse, p, indices, lse, row);
}
