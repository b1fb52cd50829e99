// Four backward passes that differ in what the forward saved, a, and in three lines: how a becomes the probability p, what is
// summed over the row, and what the gradient is.  g is dy.
#pragma once
#include "backward/team.h"
#include "backward/split.h"

struct FromY {                                      // softmax, saved: y
    __device__ F probability(F a) const { return a; }
    __device__ F term(F p, F g) const { return p * g; }
    __device__ F gradient(F p, F g, F sum) const { return p * (g - sum); }
};

struct FromX : FromY {                              // softmax, saved: x and the state of the row
    F m, factor;
    __device__ FromX(State state) : m(origin(state.m)), factor(share(state)) {}
    __device__ F probability(F a) const { return exponential(a - m) * factor; }
};

struct FromLogY {                                   // log-softmax, saved: log y
    __device__ F probability(F a) const { return exponential(a); }
    __device__ F term(F p, F g) const { return g; }
    __device__ F gradient(F p, F g, F sum) const { return g - p * sum; }
};

struct LogFromX : FromX {                           // log-softmax, saved: x and the state of the row
    F visible;                                      // 0 for a row of only -inf
    __device__ LogFromX(State state) : FromX(state), visible(nothing_visible(state) ? 0 : 1) {}
    __device__ F term(F p, F g) const { return g; }
    __device__ F gradient(F p, F g, F sum) const { return visible * g - p * sum; }
};

__shared__ F partial[32 * CLUSTER];                 // for team_merge()

// What two_passes.cu and registers.cu differ in: one row of N elements, by all threads of a team.  `make_rule` may have to wait
// for a state, so it is called once the loads of the row are under way.
template <class MakeRule>
__device__ inline void backward_row(Team team, const T* a, const T* dy, T* dx, int N, MakeRule make_rule);

// A team without a row works along on an empty one, so that it meets the shuffles.
template <class MakeRule>
__device__ inline void backward(Team team, const T* a, const T* dy, T* dx, int M, int N, MakeRule make_rule) {
    const long long start = team.row * N;           // 64 bits, so M * N may exceed 2^31
    backward_row(team, a + start, dy + start, dx + start, team.row < M ? N : 0, make_rule);
}

// The entry points.  The size of a cluster stands in a declaration of its own.
extern "C" __global__ void CLUSTER_SIZE softmax_backward(const T*, const T*, T*, int, int);
extern "C" __global__ void CLUSTER_SIZE softmax_backward_from_x(const T*, const State*, const T*, T*, int, int);
extern "C" __global__ void CLUSTER_SIZE log_softmax_backward(const T*, const T*, T*, int, int);
extern "C" __global__ void CLUSTER_SIZE log_softmax_backward_from_x(const T*, const State*, const T*, T*, int, int);

extern "C" __global__ void __launch_bounds__(MAX_THREADS) softmax_backward(const T* y, const T* dy, T* dx, int M, int N) {
    backward(Team(), y, dy, dx, M, N, [] { return FromY(); });
}
extern "C" __global__ void __launch_bounds__(MAX_THREADS)
softmax_backward_from_x(const T* x, const State* states, const T* dy, T* dx, int M, int N) {
    const Team team;
    backward(team, x, dy, dx, M, N, [=] { return FromX(team.row < M ? states[team.row] : EMPTY); });
}
extern "C" __global__ void __launch_bounds__(MAX_THREADS)
log_softmax_backward(const T* log_y, const T* dy, T* dx, int M, int N) {
    backward(Team(), log_y, dy, dx, M, N, [] { return FromLogY(); });
}
extern "C" __global__ void __launch_bounds__(MAX_THREADS)
log_softmax_backward_from_x(const T* x, const State* states, const T* dy, T* dx, int M, int N) {
    const Team team;
    backward(team, x, dy, dx, M, N, [=] { return LogFromX(team.row < M ? states[team.row] : EMPTY); });
}
