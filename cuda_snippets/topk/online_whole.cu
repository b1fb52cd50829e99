// Softmax and top-k, and the whole softmax beside the k best.
//
// New:     against online_fused.cu: a second pass writes every probability, as in Online V2.  The k best cost nothing extra.
// Traffic: 2 reads and 1 write per element.
// Launch:  as online_fused.cu.
// Limits:  as online_fused.cu; y is fp32 and does not overlap x.
#include "topk/online.h"

// Four neighbours of a row: with one instruction where they lie in the row, at an address that is a multiple of 16.
__device__ inline void store4(float* y, int j, int N, float a, float b, float c, float d) {
    if (0 <= j && j + 4 <= N && (size_t)(y + j) % 16 == 0) {
        *(float4*)(y + j) = make_float4(a, b, c, d);
    } else {
        if (0 <= j && j < N) y[j] = a;
        if (0 <= j + 1 && j + 1 < N) y[j + 1] = b;
        if (0 <= j + 2 && j + 2 < N) y[j + 2] = c;
        if (0 <= j + 3 && j + 3 < N) y[j + 3] = d;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
softmax_topk_whole(const T* __restrict__ x, float* __restrict__ y, float* __restrict__ p, int* __restrict__ indices,
                   float* __restrict__ lse, int M, int N, float inverse) {
    __shared__ Exchange shared;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const long long row = (long long)blockIdx.x * ROWS + warp / WARPS;
    if (row >= M) return;                           // only where ROWS > 1, and then no barrier follows
    const float scale = inverse * LOG2_E;           // inverse is 1 / temperature
    x += row * N;
    y += row * N;

    // Pass 1: the state and the candidates.
    Candidates best;
    State state = scan(x, N, warp % WARPS, WARPS, scale, best);
    block_merge(state, best, scale, shared);
    if (warp % WARPS == 0) write(state, best, inverse, p, indices, lse, row);
    if (WARPS > 1) {                                // warp 0 tells the others
        if (threadIdx.x == 0) shared.state[0] = state;
        __syncthreads();
        state = shared.state[0];
    }

    // Pass 2: the quotient.
    for (int j = first_column(x) + warp % WARPS * STEP; j < N; j += WARPS * STEP) {
        Vectors raw;
        raw.load<32>(x, j, lane, N);
        Logits v(raw);
        for (int e = 0; e < EACH; ++e) v.v[e] = expf((v.v[e] - state.m) * inverse) / state.d;
        for (int e = 0; e < EACH; e += 4) store4(y, column<32>(j, lane, e), N, v.v[e], v.v[e + 1], v.v[e + 2], v.v[e + 3]);
    }
}
