// Fast softmax, long rows in shared memory: a block, or a cluster of CLUSTER blocks, a row.
//
// New:     against block.cu: the bytes of the row go straight to shared memory and stay there, 227 KB a multiprocessor.
//          Registers hold one piece at a time, so any number of pieces a thread will do, and several blocks fit.
// Traffic: 1 read and 1 write per element of global memory, 3 reads of shared memory, 2 exponentials.
// Launch:  grid M * CLUSTER, THREADS threads, dynamic shared memory for the pieces of a block.
// Limits:  up to 232,448 bytes a block.  CLUSTER as cluster.cu.  y may be x.
#include <cuda_pipeline.h>
#include "fast/team.h"

extern __shared__ uint4 kept[];                     // the row; each thread reads what it has written itself: no barrier

extern "C" __global__ void CLUSTER_SIZE __launch_bounds__(THREADS, BLOCKS)
softmax_shared(const T* x, T* y, int M, int N) {
    __shared__ __align__(8) State partial[WARPS];
    const int t = block_of_team() * THREADS + threadIdx.x;
    const long long number = blockIdx.x / CLUSTER;
    const Row row(x, y, number, N);
    team_starts();
    if (AHEAD) prefetch(x, number + AHEAD, M, N, block_of_team(), CLUSTER);

    int mine = threadIdx.x;
    for (int k = t; k < row.vectors; k += TEAM, mine += THREADS) __pipeline_memcpy_async(kept + mine, row.vector(k), 16);
    __pipeline_commit();
    const float extra = row.load_end(t);
    __pipeline_wait_prior(0);

    State own = {extra, 0};
    for (int i = threadIdx.x; i < mine; i += THREADS) own.m = fmaxf(own.m, Piece(kept[i]).largest());
    const auto exponential = [m = finite(own.m)](float v) { return weight(v, m); };
    own.d = exponential(extra);
    for (int i = threadIdx.x; i < mine; i += THREADS) own.d += Piece(kept[i]).map(exponential).sum();

    team_has_started();
    const Result result(join_team(own, partial));
    for (int k = t, i = threadIdx.x; k < row.vectors; k += TEAM, i += THREADS) row.store(k, Piece(kept[i]).map(result));
    row.store_end(t, result(extra));
}
