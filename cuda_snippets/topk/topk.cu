// Top-k alone: the k largest numbers of every row and their columns, in one pass; no softmax.
//
// New:     a warp keeps the k best it has met, sorted, in its lanes.  Numbers that do not beat the k-th of them are dropped
//          after one comparison of the largest of 16 with that bar.  The warps of a row merge their lists two by two.
// Traffic: 1 read per element.
// Launch:  grid ceil(M / ROWS), block 32 * WARPS * ROWS threads.
// Limits:  K from 1 to 64, N from K to 2^30, any M, any start of a row.  Among equal numbers the lowest column is first;
//          NaN counts as the largest.
#include "topk/state.h"

extern "C" __global__ void __launch_bounds__(THREADS)
topk(const T* __restrict__ x, float* __restrict__ values, int* __restrict__ indices, int M, int N) {
    __shared__ Exchange shared;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const long long row = (long long)blockIdx.x * ROWS + warp / WARPS;
    if (row >= M) return;                           // only where ROWS > 1, and then no barrier follows
    x += row * N;

    Candidates best;
    int j = first_column(x) + warp % WARPS * STEP;
    Vectors next;
    if (j < N) {
        next.load<32>(x, j, lane, N);
        best.raise_bar(Logits(next).largest());
    }
    for (; j < N; j += WARPS * STEP) {
        const Logits v(next);
        if (j + WARPS * STEP < N) next.load<32>(x, j + WARPS * STEP, lane, N);
        const float top = v.largest(), sum = v.sum();           // a NaN shows in the sum
        if (__any_sync(ALL, !(top <= best.bar) || sum != sum)) best.consider(v, j, N);
    }

    State none = EMPTY;
    block_merge(none, best, 1, shared);
    if (warp % WARPS != 0) return;
    for (int s = 0; s < SLOTS; ++s) {
        const int i = 32 * s + lane;
        if (i >= K) continue;
        values[row * K + i] = key_logit(best.list[s]);
        indices[row * K + i] = key_column(best.list[s]);
    }
}
