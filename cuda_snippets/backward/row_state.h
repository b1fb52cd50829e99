// The state of a row in one pass: what both forward kernels begin with.
#pragma once
#include "backward/team.h"
#include "backward/split.h"

#ifndef LOADS
#define LOADS (sizeof(T) < 8 ? 4 : 2)               // loads of 16 bytes that a thread has under way
#endif

// Blocks that only read, and that a multiprocessor for 2048 threads must be able to hold at once: 40 or 32 registers a thread.
#if !defined(DOUBLE) && (__CUDA_ARCH__ == 800 || __CUDA_ARCH__ >= 900 && __CUDA_ARCH__ < 1200)
#define MIN_BLOCKS (WARP_TEAM ? 6 : 2)
#else
#define MIN_BLOCKS 1
#endif

__shared__ State partial[32];                       // for team_merge()

// The larger in each place; drops a NaN.
#if defined(HALF) || defined(BF16)
__device__ inline Pair larger(Pair a, Pair b) { return __hmax2(a, b); }
#else
__device__ inline Pair larger(Pair a, Pair b) { return Pair{max(a.x, b.x), max(a.y, b.y)}; }
#endif

// What a thread asks memory for at once: the pieces first, first + threads, ... of a row; -inf stands for what lies behind it.
struct Batch {
    uint4 bytes[LOADS];
    __device__ void load(const uint4* x16, int vectors, int first, int threads) {
        for (int i = 0; i < LOADS; ++i)
            bytes[i] = first + i * threads < vectors ? x16[first + i * threads] : Piece::all(NEG_INF).bytes();
    }
    __device__ State state() const {
        Pair top = pair(NEG_INF, NEG_INF);          // two 16-bit numbers are compared at once
        for (int i = 0; i < LOADS; ++i)
            for (int j = 0; j < WIDTH / 2; ++j) top = larger(top, ((const Pair*)&bytes[i])[j]);
        const F m = max(numbers(top).x, numbers(top).y), zero = origin(m);      // a NaN is not in m, but in d
        F d = 0;
        for (int i = 0; i < LOADS; ++i)
            for (int j = 0; j < WIDTH; ++j) d += exponential(Piece(bytes[i]).v[j] - zero);
        return {m, d};
    }
};

// `meanwhile` is called once the first loads are under way: a place for other loads.
template <class Work>
__device__ inline State row_state(Team team, const T* x, Split row, Work meanwhile) {
    const uint4* x16 = (const uint4*)(x + row.head);
    Batch next;
    next.load(x16, row.vectors, team.t, team.threads);
    meanwhile();
    State state = EMPTY;
    for (int e = team.t; e < row.ends; e += team.threads) state = merge(state, State{(F)x[row.end(e)], 1});
    for (int first = team.t; first < row.vectors; first += LOADS * team.threads) {
        const Batch batch = next;
        next.load(x16, row.vectors, first + LOADS * team.threads, team.threads);
        state = merge(state, batch.state());
    }
    return team_merge(state, EMPTY, partial);
}
