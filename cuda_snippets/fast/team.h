// The team that shares a row: the threads of a block, or of a cluster of CLUSTER blocks; and how their states merge.
#pragma once
#include "fast/row.h"
#include "fast/barrier.h"

#ifndef THREADS
#define THREADS 256                                 // a block, a multiple of 32
#endif
#ifndef BLOCKS
#define BLOCKS 1                                    // that a multiprocessor must be able to hold at once: limits the registers
#endif
#ifndef CLUSTER
#define CLUSTER 1
#endif
#define TEAM (CLUSTER * THREADS)
#define WARPS (CLUSTER * THREADS / 32)

#if CLUSTER == 1
#define CLUSTER_SIZE
__device__ inline int block_of_team() { return 0; }
__device__ inline void team_starts() {}
__device__ inline void team_has_started() {}
#elif defined(__CPU_DEVICE__)
#error "Thread-block clusters need a GPU of compute capability 9.0 or later: the CPU device runs one block at a time."
#else
#define CLUSTER_SIZE __cluster_dims__(CLUSTER, 1, 1)
__shared__ ByteBarrier states_came;
__device__ inline int block_of_team() { return __clusterRelativeBlockRank(); }
// Nobody may write into the shared memory of a block that has not started: team_starts() ... team_has_started().
__device__ inline void team_starts() {
    if (threadIdx.x == 0) states_came.init(WARPS * sizeof(State));
    __cluster_barrier_arrive_relaxed();
}
__device__ inline void team_has_started() { __cluster_barrier_wait(); }
#endif

// Each warp writes its state into partial[its number] of every block of the team; returns when all have come.
__device__ inline void exchange(State s, State* partial) {
    const int lane = threadIdx.x % 32, warp = block_of_team() * (THREADS / 32) + threadIdx.x / 32;
#if CLUSTER == 1
    if (lane == 0) partial[warp] = s;
    __syncthreads();
#else
    if (lane < CLUSTER) store_async(in_other_block(partial + warp, lane), s.m, s.d, in_other_block(&states_came, lane));
    states_came.wait();
#endif
}

// The state of the team, once in a kernel: `partial`, shared memory for WARPS states, is not written again.
__device__ inline State join_team(State s, State* partial) {
    constexpr int lanes = WARPS < 32 ? power_of_two(WARPS) : 32;
    exchange(join_lanes<32>(s), partial);
    int i = threadIdx.x % lanes;
    s = i < WARPS ? partial[i] : EMPTY;
    while ((i += lanes) < WARPS) s = join(s, partial[i]);
    return join_lanes<lanes>(s);
}
