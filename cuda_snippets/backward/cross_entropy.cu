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

extern "C" __global__ void __launch_bounds__(MAX_THREADS, MIN_BLOCKS)
cross_entropy_forward(const T* __restrict__ x, const long long* __restrict__ targets, F* __restrict__ loss,
                      State* __restrict__ states, int M, int N, long long ignored) {
    const Team team;
    const bool writes = team.t == 0 && team.row < M;
    x += team.row * N;
    long long target = ignored;
    F hit = 0;
    const State state = row_state(team, x, Split(x, team.row < M ? N : 0), [&] {
        if (writes) target = targets[team.row];
        if (target != ignored) hit = 0 <= target && target < N ? (F)x[target] : NOT_A_NUMBER;
    });
    if (!writes) return;
    states[team.row] = state;
    loss[team.row] = target == ignored ? 0 : (state.m - hit) + logarithm(state.d);      // m and x are exact, LSE would be rounded
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
    Batch next;                                     // asked for before it is known whether the row counts: that takes time too
    next.load(x16, row.vectors, team.t, team.threads);

    const State state = states[team.row];
    const long long target = targets[team.row];
    const bool valid = 0 <= target && target < N, zero = target == ignored || nothing_visible(state);
    const int hit = valid && !zero ? (int)target : -1;
    const F scale = zero ? 0 : valid ? scales[team.row] : NOT_A_NUMBER;
    const F m = zero ? 0 : origin(state.m), factor = zero ? 0 : share(state) * scale;

    for (int e = team.t; e < row.ends; e += team.threads) {
        const int j = row.end(e);
        const F p = exponential((zero ? 0 : (F)x[j]) - m) * factor;
        dx[j] = (T)(j == hit ? p - scale : p);
    }
    for (int first = team.t; first < row.vectors; first += LOADS * team.threads) {
        const Batch batch = next;
        next.load(x16, row.vectors, first + LOADS * team.threads, team.threads);
        for (int i = 0; i < LOADS; ++i) {
            const int k = first + i * team.threads, at = hit - (row.head + k * WIDTH);
            if (k >= row.vectors) continue;
            Piece p(zero ? make_uint4(0, 0, 0, 0) : batch.bytes[i]);
            for (int j = 0; j < WIDTH; ++j) p.v[j] = exponential(p.v[j] - m) * factor;
            if (0 <= at && at < WIDTH)              // the target is in this piece
                for (int j = 0; j < WIDTH; ++j) p.v[j] -= j == at ? scale : 0;
            dx16[k] = p.bytes();
        }
    }
}
