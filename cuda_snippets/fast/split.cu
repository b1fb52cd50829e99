// Fast softmax, few long rows: PARTS blocks a row, in two kernels.
//
// New:     against block.cu: the blocks of a row need not run at the same time.  The first kernel leaves the state of each part
//          in memory; the second merges the states of its row and writes its part.
// Traffic: 2 reads and 1 write per element.  The second read comes from the L2 cache, if the rows fit in there.
// Launch:  both kernels: grid M * parts, THREADS threads, with parts * THREADS * VECTORS * WIDTH >= N.
// Limits:  any N up to 2^30.  y may be x.
#include "fast/share.h"

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
softmax_split_states(const T* x, State* states, int parts, int N) {
    __shared__ __align__(8) State partial[WARPS];
    const int t = blockIdx.x % parts * THREADS + threadIdx.x;
    const Row row(x, (T*)x, blockIdx.x / parts, N);

    Share share;
    share.load(row, t, parts * THREADS);
    const State state = join_team(share.state(), partial);
    if (threadIdx.x == 0) states[blockIdx.x] = state;
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
softmax_split_write(const T* x, T* y, const State* states, int parts, int N) {
    __shared__ __align__(8) State partial[WARPS];
    const int part = blockIdx.x % parts, t = part * THREADS + threadIdx.x;
    const Row row(x, y, blockIdx.x / parts, N);

    Share share;
    share.load(row, t, parts * THREADS);
    State whole = EMPTY;
    for (int i = threadIdx.x; i < parts; i += THREADS) whole = join(whole, states[blockIdx.x - part + i]);
    whole = join_team(whole, partial);
    const State own = share.state();
    share.store(row, t, parts * THREADS, own.m, whole);
}
