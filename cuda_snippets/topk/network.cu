// Softmax and top-k for short rows of 16-bit logits: sorting networks in registers.
//
// New:     against short_rows.cu: no bar and no shared memory.  A 16-bit logit and its column fit into 32 bits, so that a step
//          of a sorting network is a maximum and a minimum.  Lanes sort P of their logits at a time and merge what they have.
// Traffic: 1 read per element.
// Launch:  grid ceil(M * 8 / 128), block 128 threads; -DHALF or -DBF16.
// Limits:  K up to 8; N up to 8 * EACH, less WIDTH - 1 where rows start at addresses that are no multiples of 16.  With -DWHOLE,
//          N is 8 * EACH, and rows start at multiples of 16.  Otherwise as online_fused.cu.
#include "topk/candidates.h"

#define GROUP 8                                     // lanes that share a row
#define P (K == 1 ? 1 : K == 2 ? 2 : K <= 4 ? 4 : 8)                            // length of a list
static_assert(K <= 8 && EACH % P == 0 && WIDTH == 8, "see Limits");

// As Key, in 32 bits: of a float, a 16-bit logit leaves at least 13 bits free, enough for a column.  0 stands for no candidate.
typedef unsigned SmallKey;
#define FREE 0x1fffu

__device__ inline SmallKey small_key(float logit, int column) {
#ifdef __CPU_DEVICE__
    const unsigned order = make_key(logit, column) >> 32;
#else
    const int bits = __float_as_int(logit + 0);     // the addition makes -0 and subnormals 0, and all NaNs one, above +inf
    const unsigned order = bits ^ (bits >> 31 | 0x80000000);
#endif
    return (order & ~FREE) | (FREE - column);
}
__device__ inline int key_column(SmallKey key) { return FREE - (key & FREE); }
__device__ inline float key_logit(SmallKey key) { return key_logit((Key)((int)key < 0 ? key & ~FREE : key | FREE) << 32); }

__device__ inline void exchange(SmallKey& high, SmallKey& low) {
    const SmallKey larger = max(high, low);
    low = min(high, low), high = larger;
}

// P keys, in descending order.
struct Sorted {
    SmallKey list[P];

    // Runs of 2, 4, ... P keys that fall and rise in turn are sorted to runs of twice the length (bitonic sort).
    __device__ void sort_runs(int run) {
        #pragma unroll
        for (int bit = run / 2; bit > 0; bit /= 2)
            for (int i = 0; i < P; ++i)
                if ((i & bit) == 0 && (i & run) == 0) exchange(list[i], list[i | bit]);
                else if ((i & bit) == 0) exchange(list[i | bit], list[i]);
    }
    __device__ void sort() {
        #pragma unroll
        for (int run = 2; run <= P; run *= 2) sort_runs(run);
    }
    // Of entry i here and entry P - 1 - i there, the larger belongs to the P largest of both.  Those rise at most once.
    template <class Other> __device__ void merge(Other other) {
        SmallKey theirs[P];
        for (int i = 0; i < P; ++i) theirs[i] = other(P - 1 - i);
        for (int i = 0; i < P; ++i) list[i] = max(list[i], theirs[i]);
        sort_runs(P);
    }
};

extern "C" __global__ void __launch_bounds__(128)
softmax_topk_network(const T* __restrict__ x, float* __restrict__ p, int* __restrict__ indices, float* __restrict__ lse,
                     int M, int N, float inverse) {
    const int lane = threadIdx.x % GROUP;
    const long long row = (long long)blockIdx.x * (128 / GROUP) + threadIdx.x / GROUP;
    if (row >= M) N = 0;                            // works along on an empty row, so that it meets the shuffles
    x += row * N;
    const float scale = inverse * LOG2_E;           // inverse is 1 / temperature

    // The only pass over memory.
    const int j = first_column(x);
    Vectors raw;
    raw.load<GROUP>(x, j, lane, N);
    const Logits v(raw);

    // The state (m, d).
    float m = fmaxf(v.largest(), NEG_INF);
    for (int bit = GROUP / 2; bit > 0; bit /= 2) m = fmaxf(m, partner(m, bit));
    float d = v.weigh(origin(m), scale);
    for (int bit = GROUP / 2; bit > 0; bit /= 2) d += partner(d, bit);

    // The candidates: of this lane, then of the lanes that share the row; all of them get the result.
    Sorted best;
    #pragma unroll
    for (int first = 0; first < EACH; first += P) {
        Sorted more;
        for (int i = 0; i < P; ++i) {
            const int at = column<GROUP>(j, lane, first + i);
            more.list[i] = small_key(v.v[first + i], at);
#ifndef WHOLE
            if (at < 0 || at >= N) more.list[i] = 0;
#endif
        }
        more.sort();
        if (first == 0) best = more;
        else best.merge([&](int i) { return more.list[i]; });
    }
    #pragma unroll
    for (int bit = 1; bit < GROUP; bit *= 2) best.merge([&](int i) { return __shfl_xor_sync(ALL, best.list[i], bit); });

    // Lane i writes entry i.
    if (row >= M) return;
    for (int half = P / 2; half > 0; half /= 2)     // entry `lane` comes to the front: an index would send the list to memory
        for (int i = 0; i < half; ++i) best.list[i] = lane & half ? best.list[i + half] : best.list[i];
    const SmallKey key = best.list[0];
    if (lane < K) {
        p[row * K + lane] = __fdividef(power_of_2((key_logit(key) - m) * scale), d);
        indices[row * K + lane] = key_column(key);
    }
    if (lane == 0) lse[row] = m * inverse + logf(d);
}
