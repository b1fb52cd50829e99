// Online softmax V3: the row stays in registers, so one pass over memory is enough.
//
// New:     against V2: a thread loads its PER_THREAD elements once, every load under way before the first is used, and
//          keeps them.  It keeps their exponentials too: once the row's state is known, one factor turns them into y.
// Traffic: 1 read and 1 write per element, and one exponential.
// Launch:  one row a block: grid M.  The block is a multiple of 32 threads, at most 1024, and threads * PER_THREAD >= N.
// Limits:  a block has 65,536 registers, so each of 1024 threads has 64: enough for PER_THREAD = 32 (the code needs about
//          30 more), so N up to 32,768.  With PER_THREAD = 16, 32 registers are enough.  Otherwise as V2.
#include "vector.h"

#ifndef PER_THREAD
#define PER_THREAD 16                               // a multiple of 4: compile with -DPER_THREAD=...
#endif

extern "C" __global__ void __launch_bounds__(1024)
softmax_online_v3(const float* __restrict__ x, float* __restrict__ y, int M, int N) {
    __shared__ State partial[32];                   // one state a warp
    const int t = threadIdx.x, threads = blockDim.x;
    x += (long long)blockIdx.x * N;                 // 64 bits, so M * N may exceed 2^31
    y += (long long)blockIdx.x * N;
    const Split row(x, N);
    const float4* __restrict__ x4 = (const float4*)(x + row.head);

    // Load the row: a few vectors a thread, and one float of the ends.
    float v[PER_THREAD];                            // in registers: every index is known once the loops are unrolled
    for (int i = 0; i < PER_THREAD; i += 4) {
        const int k = t + i / 4 * threads;
        const float4 four = k < row.vectors ? x4[k] : make_float4(NEG_INF, NEG_INF, NEG_INF, NEG_INF);
        v[i] = four.x, v[i + 1] = four.y, v[i + 2] = four.z, v[i + 3] = four.w;
    }
    float extra = t < row.ends ? x[row.end(t)] : NEG_INF;

    // The state of this thread's elements, then of the row.
    float m = extra;
    for (int i = 0; i < PER_THREAD; ++i) m = nan_max(m, v[i]);
    float d = extra = expf(extra - origin(m));
    for (int i = 0; i < PER_THREAD; ++i) d += v[i] = expf(v[i] - origin(m));
    const State state = block_reduce<warp_merge>(State{m, d}, EMPTY, partial);

    // The quotient: exp(x - m) is measured from the thread's m, and the factor corrects that too.
    const float factor = expf(m - state.m) / state.d;
    const bool alike = aligned_alike(x, y);
    y += row.head;
    for (int i = 0; i < PER_THREAD; i += 4) {
        const int k = t + i / 4 * threads;
        if (k >= row.vectors) continue;
        if (alike) ((float4*)y)[k] = mul4(make_float4(v[i], v[i + 1], v[i + 2], v[i + 3]), factor);
        else for (int c = 0; c < 4; ++c) y[4 * k + c] = v[i + c] * factor;
    }
    if (t < row.ends) y[row.end(t) - row.head] = extra * factor;
}
