// Shared memory of a block, and the ring of stages through which tiles of K and V go from the producer to the consumers.
#pragma once
#include "attention/hopper/band.h"

#ifndef CONSUMERS
#define CONSUMERS 2                             // warpgroups that compute, 64 queries each
#endif
#ifndef STAGES
#define STAGES 2                                // tiles of K, and of V, that are there or under way
#endif

constexpr int QUERIES = 64 * CONSUMERS;

struct Memory {
    Block Q[CONSUMERS], O[CONSUMERS];
    Tile K[STAGES], V[STAGES];
    Barrier q_full[CONSUMERS], q_empty[CONSUMERS], k_full[STAGES], k_empty[STAGES], v_full[STAGES], v_empty[STAGES];

    __device__ void init() {                    // by one thread
        for (int w = 0; w < CONSUMERS; ++w) q_full[w].init(1), q_empty[w].init(1);
        for (int s = 0; s < STAGES; ++s) k_full[s].init(1), v_full[s].init(1), k_empty[s].init(CONSUMERS), v_empty[s].init(CONSUMERS);
        barriers_are_ready();
    }
};
static_assert(sizeof(Tile) % 1024 == 0, "the swizzle's pattern has 1,024 bytes");

// Of all threads of a block: shared memory with its barriers ready.
__device__ inline Memory& ready_memory() {
    extern __shared__ __align__(1024) char bytes[];
    Memory& memory = *(Memory*)bytes;
    if (threadIdx.x == 0) memory.init();
    __syncthreads();
    return memory;
}

// A place in the ring.  Whoever fills it waits for the parity of the round before, whoever empties it for that of this round.
struct Place {
    int stage = 0;
    unsigned round = 0;
    __device__ void next() {
        if (++stage == STAGES) stage = 0, round ^= 1;
    }
};

// Copy 64 queries, or a tile of K or V, from `row` on.
template <class Rows> __device__ inline void fetch(Rows& to, const TensorMap& from, Barrier& full, int row, int head) {
    full.expect(sizeof to);
    for (int p = 0; p < PANELS; ++p) copy_tile(to[p], from, full, 64 * p, row, head);
}

// One thread: all tiles of K and V of a head.
__device__ inline void fetch_keys_and_values(Memory& memory, const TensorMap& k, const TensorMap& v, Place& place, int tiles, int head) {
#pragma unroll 1                                // the producer has few registers
    for (int tile = 0; tile < tiles; ++tile, place.next()) {
        const int s = place.stage;
        memory.k_empty[s].wait(place.round ^ 1);
        fetch(memory.K[s], k, memory.k_full[s], tile * KEYS, head);
        memory.v_empty[s].wait(place.round ^ 1);
        fetch(memory.V[s], v, memory.v_full[s], tile * KEYS, head);
    }
}

// The number of this thread's warpgroup.  The shuffle tells the compiler that a warp has one number: what follows from it, such as where
// tiles lie, is computed once for the warp.
__device__ inline int this_warpgroup() { return __shfl_sync(~0u, threadIdx.x / 128, 0); }

// One thread of a warpgroup: arrive for all of it.
__device__ inline void release(Barrier& empty) {
    if (threadIdx.x % 128 == 0) empty.arrive();
}

// A consumer lets a tile go that it does not need.  Its warps come together first: none may still wait for this tile when the next
// one has come.
__device__ inline void let_go(Memory& memory, const Place& place) {
    memory.k_full[place.stage].wait(place.round), memory.v_full[place.stage].wait(place.round);
    join_warps();
    release(memory.k_empty[place.stage]), release(memory.v_empty[place.stage]);
}

// The first query of a block: blocks are counted from the last 64 queries backwards, since the last ones see most keys.  Warpgroups for
// which none are left belong to the block with the fewest keys; their queries have numbers below 0.
__device__ inline int first_query(int block, int Sq) { return (Sq + 63) / 64 * 64 - (block + 1) * QUERIES; }

// How many tiles of keys the queries first ... first + count - 1 see.
__device__ inline int tiles_of(int first, int count, int Sq, int Sk, int causal) {
    const int keys = first + count > 0 ? seen_by(min(first + count, Sq) - 1, Sq, Sk, causal, 0).end : 0;
    return max(0, keys + KEYS - 1) / KEYS;
}

// Registers a thread: 65,536 are divided among the warpgroups.
constexpr int PRODUCER_REGISTERS = CONSUMERS == 2 ? 40 : 32, CONSUMER_REGISTERS = CONSUMERS == 2 ? 232 : CONSUMERS == 3 ? 160 : 112;
