// Fast softmax, the longest rows: clusters that stay, and take one row after the other.
//
// New:     against cluster.cu: while a block computes, the copy engine fills a ring of STAGES shares in its shared memory.  And no
//          cluster starts in the middle of the work, for which all its places would have to be free at the same time.
// Traffic: 1 read and 1 write per element.
// Launch:  grid: CLUSTER blocks for each cluster that the GPU runs at once; THREADS threads with CLUSTER * THREADS * VECTORS * WIDTH >= N;
//          dynamic shared memory for STAGES shares of ceil(N / WIDTH / CLUSTER) vectors.
// Limits:  as cluster.cu; rows of x and y begin and end at multiples of 16 bytes (-DALIGNED), and every block has a share.
// Needs:   sm_90a
#ifndef CLUSTER
#define CLUSTER 16
#endif
#ifndef STAGES
#define STAGES 3
#endif
#include "fast/share.h"

extern "C" __global__ void CLUSTER_SIZE __launch_bounds__(THREADS, BLOCKS)
softmax_stream(const T* x, T* y, int M, int N) {
    extern __shared__ __align__(128) uint4 ring[];
    __shared__ ByteBarrier copied[STAGES], came[2];
    __shared__ __align__(8) State partial[2][WARPS];
    const int clusters = gridDim.x / CLUSTER, vectors = N / WIDTH, share = (vectors + CLUSTER - 1) / CLUSTER;
    const int first = block_of_team() * share, count = min(share, vectors - first);

    const auto fetch = [=](long long row, int stage) {              // by one thread
        copied[stage].expect(16 * count);
        copy_async(ring + stage * share, Row(const_cast<T*>(x), y, row, N).vector(first), 16 * count, copied[stage]);
    };
    long long row = blockIdx.x / CLUSTER;
    if (threadIdx.x == 0) {
        for (auto& barrier : came) barrier.init(), barrier.expect(WARPS * sizeof(State));
        for (auto& barrier : copied) barrier.init();
        for (int s = 0; s < STAGES && row + s * clusters < M; ++s) fetch(row + s * clusters, s);
    }
    __syncthreads();
    __cluster_barrier_arrive_relaxed();
    for (int turn = 0; row < M; row += clusters, ++turn) {
        const int stage = turn % STAGES, b = turn % 2;              // two sets of states: a block may be one row ahead of another
        Share mine;
        copied[stage].wait(turn / STAGES % 2);
        mine.load(ring + stage * share, count, threadIdx.x, THREADS);
        __syncthreads();                                            // all have read the stage
        if (threadIdx.x == 0 && row + STAGES * clusters < M) fetch(row + STAGES * clusters, stage);

        const State own = mine.state();
        if (turn == 0) __cluster_barrier_wait();                    // the others have started
        send(join_lanes<32>(own), partial[b], came[b]);
        came[b].wait(turn / 2 % 2);
        const State all = merged(partial[b]);
        if (threadIdx.x == 0) came[b].expect(WARPS * sizeof(State));
        mine.store(Row(x, y, row, N), first, count, threadIdx.x, THREADS, own.m, all);
    }
}
