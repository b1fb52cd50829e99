// Softmax of half, bf16 or float rows: 16 bytes with one load.
//
// New:     against element_by_element.cu: a thread loads a Piece, 8 neighbouring elements of 2 bytes, and merges the state of
//          all eight.  A row is a head of 0 to 7 elements, pieces at multiples of 16 bytes, and a tail of 0 to 7.
// Traffic: 2 reads and 1 write per element, in about an eighth of the instructions.
// Launch:  as online V1.  Compile with -DHALF, -DBF16 or nothing (then a piece holds 4 floats).
// Limits:  as online V1; x and y reach addresses that are multiples of 16 together.
#include "reduce.h"
#include "types.h"

// The state of the elements of a piece.
__device__ inline State state_of(const Piece& piece) {
    const float m = piece.largest(), base = origin(m);
    return {m, piece.map([base](float v) { return expf(v - base); }).sum()};
}

extern "C" __global__ void softmax_sixteen_bytes(const T* __restrict__ x, T* __restrict__ y, int M, int N) {
    __shared__ State partial[32];                   // one state a warp
    const int t = threadIdx.x, threads = blockDim.x;
    x += (long long)blockIdx.x * N;                 // 64 bits, so M * N may exceed 2^31
    y += (long long)blockIdx.x * N;
    const int head = min(N, (int)(-(size_t)x % 16 / sizeof(T))), pieces = (N - head) / WIDTH;
    const int ends = N - WIDTH * pieces;            // head and tail together
    const auto end = [=](int e) { return e < head ? e : e + WIDTH * pieces; };      // column of the ends' element e
    const uint4* __restrict__ x16 = (const uint4*)(x + head);
    uint4* __restrict__ y16 = (uint4*)(y + head);

    // Pass 1: the state of this thread's elements, then of the row.
    State state = EMPTY;
    for (int e = t; e < ends; e += threads) state = merge(state, State{(float)x[end(e)], 1});
    for (int k = t; k < pieces; k += threads) state = merge(state, state_of(Piece(x16[k])));
    state = block_reduce<warp_merge>(state, EMPTY, partial);

    // Pass 2: the quotient.
    const auto result = [m = state.m, factor = 1 / state.d](float v) { return expf(v - m) * factor; };
    for (int e = t; e < ends; e += threads) y[end(e)] = (T)result((float)x[end(e)]);
    for (int k = t; k < pieces; k += threads) y16[k] = Piece(x16[k]).map(result).bytes();
}
