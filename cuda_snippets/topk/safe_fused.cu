// Softmax and top-k fused, with safe softmax: two passes.
//
// New:     against safe softmax followed by topk.cu: the pass that sums also collects the candidates.  No probabilities are
//          written that only the selection would read again.
// Traffic: 2 reads per element.
// Launch:  grid ceil(M / ROWS), block 32 * WARPS * ROWS threads.
// Limits:  as topk.cu; NaN makes all probabilities of its row NaN.
#include "topk/state.h"

extern "C" __global__ void __launch_bounds__(THREADS)
softmax_topk_safe(const T* __restrict__ x, float* __restrict__ p, int* __restrict__ indices, float* __restrict__ lse,
                  int M, int N, float inverse) {
    __shared__ Exchange shared;
    __shared__ float maxima[WARPS];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const long long row = (long long)blockIdx.x * ROWS + warp / WARPS;
    if (row >= M) return;                           // only where ROWS > 1, and then no barrier follows
    const float scale = inverse * LOG2_E;           // inverse is 1 / temperature
    x += row * N;
    const int first = first_column(x) + warp % WARPS * STEP;

    // Pass 1: the maximum.
    float m = NEG_INF;
    Vectors next;
    if (first < N) next.load<32>(x, first, lane, N);
    for (int j = first; j < N; j += WARPS * STEP) {
        const Logits v(next);
        if (j + WARPS * STEP < N) next.load<32>(x, j + WARPS * STEP, lane, N);
        m = fmaxf(m, v.largest());                  // passes over NaN, which will show in the sum
    }
    m = warp_max(m);
    if (WARPS > 1) {
        if (lane == 0) maxima[warp] = m;
        __syncthreads();
        for (int w = 0; w < WARPS; ++w) m = fmaxf(m, maxima[w]);
    }

    // Pass 2: the sum, and the candidates.
    const float base = origin(m);
    float d = 0, lost = 0;
    Candidates best;
    if (first < N) {
        next.load<32>(x, first, lane, N);
        best.raise_bar(Logits(next).largest());
    }
    for (int j = first; j < N; j += WARPS * STEP) {
        const Logits v(next);
        if (j + WARPS * STEP < N) next.load<32>(x, j + WARPS * STEP, lane, N);
        const float part = v.weigh(base, scale), sum = d + part;
        lost += part - (sum - d);                   // what the addition rounds away
        d = sum;
        if (__any_sync(ALL, !(v.largest() <= best.bar) || part != part)) best.consider(v, j, N);
    }
    State state = {m, warp_sum(d + lost)};
    block_merge(state, best, scale, shared);
    if (warp % WARPS == 0) write(state, best, inverse, p, indices, lse, row);
}
