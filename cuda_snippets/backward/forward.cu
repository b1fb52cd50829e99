// Softmax or log-softmax forward that saves the state (m, d) of each row, for the backward pass.
//
// New:     against online V2: elements of any type (types.h), four loads of a thread under way at a time, and thread 0 writes
//          the state.  That is all that a backward pass needs to know beside x.
// Traffic: 2 reads and 1 write per element, and a state a row.
// Launch:  one row a block: grid M.  The block is a multiple of 32 threads, at most 1024.
// Limits:  any M, N up to 2^30; x and y do not overlap.  Where they are not aligned alike, the row goes element by element.
#include "backward/row_state.h"

struct Softmax {
    F m, factor;
    __device__ Softmax(State s) : m(s.m), factor(1 / s.d) {}
    __device__ F operator()(F x) const { return exponential(x - m) * factor; }
};
struct LogSoftmax {
    F m, last;
    __device__ LogSoftmax(State s) : m(s.m), last(logarithm(s.d)) {}
    __device__ F operator()(F x) const { return (x - m) - last; }
};

template <class Result>
__device__ inline void forward(const T* __restrict__ x, T* __restrict__ y, State* __restrict__ states, int N) {
    const Team team;
    x += team.row * N;                              // 64 bits, so M * N may exceed 2^31
    y += team.row * N;
    const Split row(x, N, aligned_alike(x, y));

    // Pass 1: the state of the row.
    const State state = row_state(team, x, row, [] {});
    if (team.t == 0) states[team.row] = state;

    // Pass 2: the result.
    const Result result(state);
    const uint4* x16 = (const uint4*)(x + row.head);
    uint4* y16 = (uint4*)(y + row.head);
    for (int e = team.t; e < row.ends; e += team.threads) y[row.end(e)] = (T)result(x[row.end(e)]);
    for (int k = team.t; k < row.vectors; k += team.threads) {
        Piece p(x16[k]);
        for (int j = 0; j < WIDTH; ++j) p.v[j] = result(p.v[j]);
        y16[k] = p.bytes();
    }
}

extern "C" __global__ void __launch_bounds__(MAX_THREADS) softmax_forward(const T* x, T* y, State* states, int M, int N) {
    forward<Softmax>(x, y, states, N);
}
extern "C" __global__ void __launch_bounds__(MAX_THREADS) log_softmax_forward(const T* x, T* y, State* states, int M, int N) {
    forward<LogSoftmax>(x, y, states, N);
}
