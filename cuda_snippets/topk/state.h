// What a warp knows about a part of a row: the state (m, d) and the candidates; how parts merge, and the result.
#pragma once
#include "topk/candidates.h"

#ifndef WARPS
#define WARPS 1                                     // warps that share a row, a power of two: compile with -DWARPS=...
#endif
#ifndef ROWS
#define ROWS (WARPS == 1 ? 4 : 1)                   // rows in a block
#endif
#define THREADS (32 * WARPS * ROWS)
#define STEP (32 * EACH)                            // columns that a warp takes in one step
static_assert((WARPS & (WARPS - 1)) == 0 && THREADS <= 1024, "see Launch");
static_assert(ROWS == 1 || WARPS == 1, "a block whose rows end at different times must not need a barrier");

// The state of two parts together, as merge() in reduce.h, at a temperature: scale = log2(e) / temperature.
__device__ inline State merge(State a, State b, float scale) {
    const float m = fmaxf(a.m, b.m), base = origin(m);          // a NaN is kept by d
    return {m, a.d * exp2f((a.m - base) * scale) + b.d * exp2f((b.m - base) * scale)};
}

// Room for the warps of a block to exchange what they have found.
struct Exchange {
    Key list[WARPS][K];
    State state[WARPS];
};

// Merge the parts of the block's warps, two by two; warp 0 ends up with the whole.
__device__ inline void block_merge(State& state, Candidates& best, float scale, Exchange& shared) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    for (int half = WARPS / 2; half > 0; half /= 2) {
        if (warp >= half && warp < 2 * half) {
            best.store(shared.list[warp]);
            if (lane == 0) shared.state[warp] = state;
        }
        __syncthreads();
        if (warp < half) {
            best.merge(shared.list[warp + half]);
            state = merge(state, shared.state[warp + half], scale);
        }
    }
}

// The result of a row: the probability exp((x - m) / temperature) / d of each candidate, its column, and the row's LSE.
__device__ inline void write(State state, const Candidates& best, float inverse, float* __restrict__ p,
                             int* __restrict__ indices, float* __restrict__ lse, long long row) {
    const int lane = threadIdx.x % 32;
    for (int s = 0; s < SLOTS; ++s) {
        const int i = 32 * s + lane;
        if (i >= K) continue;
        p[row * K + i] = expf((key_logit(best.list[s]) - state.m) * inverse) / state.d;
        indices[row * K + i] = key_column(best.list[s]);
    }
    if (lane == 0) lse[row] = state.m * inverse + logf(state.d);
}
