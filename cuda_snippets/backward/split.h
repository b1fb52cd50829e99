// Rows cut at the addresses that are multiples of 16.
#pragma once
#include "types.h"

// Do rows that start at a and at b reach addresses that are multiples of 16 together?
__device__ inline bool aligned_alike(const T* a, const T* b) { return ((size_t)a - (size_t)b) % 16 == 0; }

// A row of N elements as a head of 0 to WIDTH - 1, vectors of WIDTH at addresses that are multiples of 16, and a tail of 0 to
// WIDTH - 1; `ends` counts head and tail together.  Not `in_vectors`, the row is all head.
struct Split {
    int head, vectors, ends;
    __device__ Split(const T* row, int N, bool in_vectors = true) {
        head = in_vectors ? min(N, (int)(-(size_t)row % 16 / sizeof(T))) : N;
        vectors = (N - head) / WIDTH;
        ends = N - WIDTH * vectors;
    }
    __device__ int end(int e) const { return e < head ? e : e + WIDTH * vectors; }  // column of element e of the ends
};
