// Cross-entropy from logits, forward and backward, without the probabilities in memory.
//
// New:     loss = LSE - x[target] needs the state (m, d) of the row and one of its elements, so the forward pass writes two
//          numbers a row and no row.  The backward pass, dx = (p - onehot) * scale with p = exp(x - m) / d, needs no sum over
//          the row: everything about the other elements is in the state.
// Traffic: forward 1 read per element, backward 1 read and 1 write.
// Launch:  forward: one row a block, grid M, or with -DLANES=8, 16 or 32 one row for LANES threads.  Backward: grid M * parts,
//          each block takes every parts-th stretch of its row.  Blocks are a multiple of 32 threads, at most 1024.
// Limits:  any M, N up to 2^30; dx may be x.  Where a target is `ignored`, loss and gradient are 0.  Any other target outside
//          of 0 ... N - 1 makes both NaN.  A row of only -inf has no probabilities: its loss is NaN, its gradient 0.
#include "backward/row_state.h"

extern "C" __global__ void __launch_bounds__(MAX_THREADS)
cross_entropy_forward(const T* __restrict__ x, const long long* __restrict__ targets, F* __restrict__ loss,
                      State* __restrict__ states, int M, int N, long long ignored) {
    const Team team;
    x += team.row * N;
    const State state = row_state(team, x, Split(x, team.row < M ? N : 0));
    if (team.t != 0 || team.row >= M) return;
    const long long target = targets[team.row];
    states[team.row] = state;
    F value = 0;
    if (target != ignored) {
        const F hit = 0 <= target && target < N ? (F)x[target] : NOT_A_NUMBER;
        value = (state.m - hit) + logarithm(state.d);           // in this order: m and x are exact, LSE would be rounded
    }
    loss[team.row] = value;
}

extern "C" __global__ void __launch_bounds__(MAX_THREADS)
cross_entropy_backward(const T* x, const State* __restrict__ states, const long long* __restrict__ targets,
                       const F* __restrict__ scales, T* dx, int M, int N, int parts, long long ignored) {
    const Team team(parts);                         // the blocks of a row share the work and never meet
    if (team.row >= M) return;
    x += team.row * N;
    dx += team.row * N;
    const Split row(x, N, aligned_alike(x, dx));
    const uint4* x16 = (const uint4*)(x + row.head);
    uint4* dx16 = (uint4*)(dx + row.head);

    const State state = states[team.row];
    const long long target = targets[team.row];
    const bool valid = 0 <= target && target < N, zero = target == ignored || nothing_visible(state);
    const int hit = valid ? (int)target : -1;
    const F m = origin(state.m), factor = share(state), scale = valid ? scales[team.row] : NOT_A_NUMBER;
    const auto gradient = [=](F v, int column) -> F {
        const F p = exponential(v - m) * factor;
        return zero ? 0 : (column == hit ? p - 1 : p) * scale;
    };

    for (int e = team.t; e < row.ends; e += team.threads) {
        const int j = row.end(e);
        dx[j] = (T)gradient(x[j], j);
    }
    for (int first = team.t; first < row.vectors; first += LOADS * team.threads) {
        uint4 bytes[LOADS];
        for (int i = 0; i < LOADS; ++i) {
            const int k = first + i * team.threads;
            bytes[i] = zero || k >= row.vectors ? make_uint4(0, 0, 0, 0) : x16[k];
        }
        for (int i = 0; i < LOADS; ++i) {
            const int k = first + i * team.threads;
            if (k >= row.vectors) continue;
            Piece p(bytes[i]);
            for (int j = 0; j < WIDTH; ++j) p.v[j] = gradient(p.v[j], row.head + k * WIDTH + j);
            dx16[k] = p.bytes();
        }
    }
}
