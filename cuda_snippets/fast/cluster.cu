// Fast softmax, long rows: a cluster of CLUSTER blocks a row, the row in their registers.
//
// New:     against block.cu: the registers of up to 16 multiprocessors hold one row.  The blocks of a cluster run at the same
//          time and reach each other's shared memory, so that their states merge as those of the warps of one block do.
// Traffic: 1 read and 1 write per element.
// Launch:  grid M * CLUSTER, THREADS threads, with CLUSTER * THREADS * VECTORS * WIDTH >= N.
// Limits:  CLUSTER 2, 4 or 8, or 16 where the GPU and the launch allow it; otherwise as block.cu.  A GPU of compute capability 9.0 or later.
// Needs:   sm_90a
#ifndef CLUSTER
#define CLUSTER 2
#endif
#include "fast/share.h"

extern "C" __global__ void CLUSTER_SIZE __launch_bounds__(THREADS, BLOCKS)
softmax_cluster(const T* x, T* y, int M, int N) {
    __shared__ __align__(8) State partial[WARPS];
    const int t = block_of_team() * THREADS + threadIdx.x;
    const long long number = blockIdx.x / CLUSTER;
    const Row row(x, y, number, N);
    team_starts();
    if (AHEAD) prefetch(x, number + AHEAD, M, N, block_of_team(), CLUSTER);

    Share share;
    share.load(row, t, TEAM);
    const State own = share.state();
    team_has_started();
    share.store(row, t, TEAM, own.m, join_team(own, partial));
}
