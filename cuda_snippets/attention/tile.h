// Rows of K, V or Q in shared memory, in pieces of 16 bytes, and what ldmatrix makes of them.
//
// 32 banks hold 128 bytes.  A matrix is one piece of each of 8 rows; unswizzled, rows of 128 or 256 bytes would have all 8 in the same
// four banks.  So piece c of a row lies at c ^ (row % 8), and the 8 are in 8 different places.  (Of rows of 64 bytes two lie side by side;
// there it is c ^ (row / 2 % 4).)
#pragma once
#include "attention/band.h"

#ifndef WARPS
#define WARPS 4
#endif
#define THREADS (32 * WARPS)
#define PIECES (D / 8)                                                  // of 16 bytes in a row

template <int ROWS> struct Rows {
    static constexpr int LINE = D <= 32 ? 4 : (PIECES + 7) / 8 * 8;     // pieces a row takes
    uint4 piece[ROWS][LINE];

    __device__ uint4* at(int row, int c) { return &piece[row][D <= 32 ? c ^ (row / 2 % 4) : c ^ (row % 8)]; }

    // Operands B of S = Q K^T: keys 16 n ..., columns 16 c ...; r[0], r[1] for the first 8 keys, r[2], r[3] for the others.
    __device__ void load_keys(unsigned (&r)[4], int n, int c) {
        const int lane = threadIdx.x % 32;
        load_matrices(r, at(16 * n + lane / 16 * 8 + lane % 8, 2 * c + lane / 8 % 2));
    }
    // Operands B of O = P V: keys 16 n ..., columns 16 c ...; r[0], r[1] for the first 8 columns, r[2], r[3] for the others.
    __device__ void load_values(unsigned (&r)[4], int n, int c) {
        const int lane = threadIdx.x % 32;
        load_transposed(r, at(16 * n + lane % 16, 2 * c + lane / 16));
    }
    // Operand A of S = Q K^T: queries 16 n ..., columns 16 c ...
    __device__ void load_queries(unsigned (&r)[4], int n, int c) {
        const int lane = threadIdx.x % 32;
        load_matrices(r, at(16 * n + lane % 16, 2 * c + lane / 16));
    }
    // put(to, from, exists) for each piece of the tile; LINE threads take a row, and only the first `rows` rows exist.
    template <class Put> __device__ void fill(const T* from, int rows, Put put) {
        constexpr int AT_ONCE = THREADS / LINE;
        static_assert(ROWS % AT_ONCE == 0, "every thread takes the same number of pieces");
        const int row = threadIdx.x / LINE, c = threadIdx.x % LINE;
        if (c < PIECES)
            for (int n = 0; n < ROWS; n += AT_ONCE) put(at(row + n, c), (const uint4*)from + (row + n) * PIECES + c, row + n < rows);
    }
    __device__ void copy(const T* from, int rows) {
        fill(from, rows, [](uint4* to, const uint4* from, bool exists) { *to = exists ? *from : make_uint4(0, 0, 0, 0); });
    }
    __device__ void start_copy(const T* from, int rows) { fill(from, rows, copy_async); }
};
typedef Rows<KEYS> Tile;

// S = Q K^T, 16 columns at a time; O += P V, 16 keys at a time.
__device__ inline void multiply_keys(Scores& S, const Queries& Q, Tile& K) {
    for (int c = 0; c < D / 16; ++c)
        for (int n = 0; n < KEYS / 16; ++n) {
            unsigned B[4];
            K.load_keys(B, n, c);
            mma(S[2 * n], Q[c], B[0], B[1]), mma(S[2 * n + 1], Q[c], B[2], B[3]);
        }
}
__device__ inline void multiply_values(State& s, const Scores& S, Tile& V) {
    for (int n = 0; n < KEYS / 16; ++n) {
        unsigned P[4], B[4];
        weights(P, S, n);
        for (int c = 0; c < D / 16; ++c) {
            V.load_values(B, n, c);
            mma(s.O[2 * c], P, B[0], B[1]), mma(s.O[2 * c + 1], P, B[2], B[3]);
        }
    }
}
