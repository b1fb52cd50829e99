// Softmax and top-k in one pass: the k best logits beside (m, d).
//
// New:     against safe_fused.cu: maximum, normalizer and candidates come from one pass, scan() in online.h.
// Traffic: 1 read per element; k probabilities and k columns are written for each row.
// Launch:  grid ceil(M / ROWS), block 32 * WARPS * ROWS threads.
// Limits:  K from 1 to 64, N from K to 2^30, any M, any start of a row.  fp32, or fp16 with -DHALF, bf16 with -DBF16.
//          NaN counts as the largest logit, and makes all probabilities of its row NaN.
#include "topk/online.h"

// That a multiprocessor must hold at once: 96 registers a thread for steps of 32 logits, 64 for shorter ones.
#define BLOCKS (EACH > 16 ? 640 / THREADS : K <= 32 ? 1024 / THREADS : 1)

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
softmax_topk_online(const T* __restrict__ x, float* __restrict__ p, int* __restrict__ indices, float* __restrict__ lse,
                    int M, int N, float inverse) {
    __shared__ Exchange shared;
    const int warp = threadIdx.x / 32;
    const long long row = (long long)blockIdx.x * ROWS + warp / WARPS;
    if (row >= M) return;                           // only where ROWS > 1, and then no barrier follows
    const float scale = inverse * LOG2_E;           // inverse is 1 / temperature

    Candidates best;
    State state = scan(x + row * N, N, warp % WARPS, WARPS, scale, best);
    block_merge(state, best, scale, shared);
    if (warp % WARPS == 0) write(state, best, inverse, p, indices, lse, row);
}
