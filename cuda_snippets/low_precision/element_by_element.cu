// Softmax of half, bf16 or float rows: 2 or 4 bytes in memory, float in registers.
//
// New:     against online V1: an element becomes a float as it is loaded, and a result is rounded as it is stored, once.  The
//          state (m, d), the exponentials and the division are float, whatever the rows are.
// Traffic: 2 reads and 1 write per element, and one barrier, as in V1; half the bytes with -DHALF or -DBF16.
// Launch:  as V1.  Compile with -DHALF, -DBF16 or nothing.
// Limits:  as V1.
#include "reduce.h"
#include "types.h"

extern "C" __global__ void softmax_element_by_element(const T* __restrict__ x, T* __restrict__ y, int M, int N) {
    __shared__ State partial[32];                   // one state a warp
    const int t = threadIdx.x, threads = blockDim.x;
    x += (long long)blockIdx.x * N;                 // 64 bits, so M * N may exceed 2^31
    y += (long long)blockIdx.x * N;

    // Pass 1: the state of this thread's elements, then of the row.
    State state = EMPTY;
    for (int j = t; j < N; j += threads) state = merge(state, State{(float)x[j], 1});
    state = block_reduce<warp_merge>(state, EMPTY, partial);

    // Pass 2: the quotient.
    for (int j = t; j < N; j += threads) y[j] = (T)(expf((float)x[j] - state.m) / state.d);
}
