// The team of threads that shares a row: LANES neighbours in a warp, a block, or a cluster of CLUSTER blocks.
#pragma once
#include "backward/state.h"

#ifdef LANES                                        // 8, 16 or 32
#define WARP_TEAM true
#define MAX_THREADS 256
#else
#define WARP_TEAM false
#define MAX_THREADS 1024
#define LANES 32                                    // whole warps, and as many as the block has
#endif
#ifndef CLUSTER
#define CLUSTER 1
#endif

#if CLUSTER == 1
#define CLUSTER_SIZE
__device__ inline void start() {}
__device__ inline void started() {}
__device__ inline void team_barrier() { __syncthreads(); }
template <class V> __device__ inline V* in_block(V* shared, int block) { return shared; }
#elif defined(__CPU_DEVICE__)
#error "Thread-block clusters need a GPU of compute capability 9.0 or later: the CPU device runs one block at a time."
#else
#define CLUSTER_SIZE __cluster_dims__(CLUSTER, 1, 1)
__device__ inline void start() { __cluster_barrier_arrive_relaxed(); }          // once started() returns, all blocks of the
__device__ inline void started() { __cluster_barrier_wait(); }                  // cluster run, and their memory can be reached
__device__ inline void team_barrier() { __cluster_barrier_arrive(), __cluster_barrier_wait(); }
template <class V> __device__ inline V* in_block(V* shared, int block) {        // the same memory in another block
    return (V*)__cluster_map_shared_rank(shared, block);
}
#endif

// The row that a team works on, and which of its threads this is.  Where threads of a row need not meet, `blocks` is free.
struct Team {
    long long row;
    int t, threads;
    __device__ Team(int blocks = CLUSTER) {
        if (WARP_TEAM) {
            row = (long long)blockIdx.x * (blockDim.x / LANES) + threadIdx.x / LANES;
            t = threadIdx.x % LANES, threads = LANES;
        } else {
            row = blockIdx.x / blocks;
            t = blockIdx.x % blocks * blockDim.x + threadIdx.x, threads = blocks * blockDim.x;
        }
    }
};

// Two partial results together: of sums the sum; merge() of states is in state.h.
__device__ inline F merge(F a, F b) { return a + b; }

// The same for LANES neighbours; each of them gets the result.
__device__ inline F partner(F v, int bit) { return __shfl_xor_sync(0xffffffff, v, bit); }
__device__ inline F lanes_merge(F sum) {
    for (int bit = LANES / 2; bit > 0; bit /= 2) sum += partner(sum, bit);
    return sum;
}
__device__ inline State lanes_merge(State s) {
    F m = s.m;
    for (int bit = LANES / 2; bit > 0; bit /= 2) m = max(m, partner(m, bit));
    return {m, lanes_merge(s.d * exponential(s.m - origin(m)))};
}

// And for the team.  Each warp leaves its result in `partial`, shared memory for one a warp of the team, in every block of the
// team; then all warps merge what has come.  Once for each `partial`, or with a barrier between.
template <class V> __device__ inline V team_merge(V v, V identity, V* partial) {
    v = lanes_merge(v);
    if (WARP_TEAM) return v;
    const int lane = threadIdx.x % 32, warps = blockDim.x / 32, warp = blockIdx.x % CLUSTER * warps + threadIdx.x / 32;
    if (lane < CLUSTER) in_block(partial, lane)[warp] = v;
    team_barrier();
    v = identity;
    for (int c = 0; c < CLUSTER; ++c)
        if (lane + 32 * c < CLUSTER * warps) v = merge(v, partial[lane + 32 * c]);
    return lanes_merge(v);
}
