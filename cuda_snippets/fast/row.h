// A row, and what one thread holds of it.  The same for all kernels of this folder.
//
// -DVECTORS=...  pieces of 16 bytes a thread holds in registers.
// -DAHEAD=...    rows ahead of the present one that a block asks the L2 cache for; 0: none.
// -DSTARTED=...  rows that start together with the launch: their own blocks load them, so nobody else asks for them.
// -DALIGNED      rows of x and y begin and end at multiples of 16 bytes.
// -DLOG          y = (x - m) - log d instead of exp(x - m) / d.
#pragma once
#include "types.h"
#include "fast/state.h"

#ifndef VECTORS
#define VECTORS 4
#endif
#ifndef AHEAD
#define AHEAD 0
#endif
#ifndef STARTED
#define STARTED 0
#endif

// A row cut at the multiples of 16 bytes: a head of 0 to WIDTH - 1 elements, vectors, a tail.  Head and tail are the ends.
struct Row {
    const T* x;
    T* y;
    int N, head, vectors, ends;

    __device__ Row(const T* all_x, T* all_y, long long row, int N) : x(all_x + row * N), y(all_y + row * N), N(N) {
        head = min(N, (int)(-(size_t)x % 16 / sizeof(T))), vectors = (N - head) / WIDTH, ends = N - WIDTH * vectors;
#ifdef ALIGNED
        head = ends = 0, vectors = N / WIDTH;
#endif
    }
    __device__ const uint4* vector(int k) const { return (const uint4*)(x + head) + k; }
    __device__ bool has_end(int t) const { return ends > 0 && t < ends; }       // thread t takes one element of the ends
    __device__ int end(int t) const { return t < head ? t : N - ends + t; }
    __device__ float load_end(int t) const { return has_end(t) ? (float)x[end(t)] : NEG_INF; }
    __device__ void store_end(int t, float v) const { if (has_end(t)) y[end(t)] = (T)v; }

    // One store, or one an element where the row of y is not aligned as the row of x is.
    __device__ void store(int k, const Piece& p) const {
        T* const to = y + head + k * WIDTH;
#ifndef ALIGNED
        if ((size_t)to % 16 != 0) {
            for (int j = 0; j < WIDTH; ++j) to[j] = (T)p.v[j];
            return;
        }
#endif
        *(uint4*)to = p.bytes();
    }
};

// Ask for a row, `number`, to be brought to the L2 cache.  Block `block` of `blocks` asks for its part, with one instruction.
__device__ inline void prefetch(const T* x, long long number, int M, int N, int block, int blocks) {
#if __CUDA_ARCH__ >= 900
    if (number < STARTED || number >= M) return;
    const Row row(x, (T*)x, number, N);
    const int first = (long long)row.vectors * block / blocks, last = (long long)row.vectors * (block + 1) / blocks;
    if (threadIdx.x == 0 && last > first)
        asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" :: "l"(row.vector(first)), "r"(16 * (last - first)));
#endif
}

// What an element becomes, once the state of its row is known.
struct Result {
    float m, last;
#ifdef LOG
    // The quick logarithm is wrong by 3 units in the last place of a float, or by 4e-7 near 0: enough for elements of 2 bytes.
    __device__ Result(State row) : m(finite(row.m)), last(sizeof(T) == 4 ? logf(row.d) : __logf(row.d)) {}
    __device__ float operator()(float x) const { return (x - m) - last; }
#else
    __device__ Result(State row) : m(finite(row.m)), last(__fdividef(1, row.d)) {}
    __device__ float operator()(float x) const { return weight(x, m) * last; }
#endif
};
