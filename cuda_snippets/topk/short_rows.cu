// Softmax and top-k for short rows: GROUP lanes hold a row in registers, and several rows share a warp.
//
// New:     against online_fused.cu: no list.  The K-th largest of the lanes' maxima is a bar that few logits reach.  Those
//          few go to shared memory, and the place of each in the result is the number of those that beat it.
// Traffic: 1 read per element.
// Launch:  grid ceil(M * GROUP / 128), block 128 threads.
// Limits:  K up to GROUP; N up to GROUP * EACH, less WIDTH - 1 where rows start at addresses that are no multiples of 16.
//          Otherwise as online_fused.cu.
#include "topk/candidates.h"

#ifndef GROUP
#define GROUP 16                                    // lanes that share a row: 8, 16 or 32; compile with -DGROUP=...
#endif
#define BLOCKS (EACH > 16 || GROUP > 16 ? 1 : __CUDA_ARCH__ < 800 ? 8 : 9)     // at once on a multiprocessor: 56 registers a thread
#define ROOM 64                                     // logits of a row that reach the bar; where more do, another way is taken
static_assert(K <= GROUP && 32 % GROUP == 0, "see Limits");

template <class V> __device__ inline V group_partner(V v, int bit) { return __shfl_xor_sync(ALL, v, bit); }

extern "C" __global__ void __launch_bounds__(128, BLOCKS)
softmax_topk_short(const T* __restrict__ x, float* __restrict__ p, int* __restrict__ indices, float* __restrict__ lse,
                   int M, int N, float inverse) {
    __shared__ Key keys[128 / GROUP][ROOM];
    const int lane = threadIdx.x % GROUP, group = threadIdx.x / GROUP;
    const long long row = (long long)blockIdx.x * (128 / GROUP) + group;
    if (row >= M) N = 0;                            // works along on an empty row, so that it meets the shuffles
    x += row * N;
    const float scale = inverse * LOG2_E;           // inverse is 1 / temperature

    // The only pass over memory.
    const int j = first_column(x);
    Vectors raw;
    raw.load<GROUP>(x, j, lane, N);
    const Logits v(raw);

    // The state (m, d) and the bar, from registers.
    const float top = fmaxf(v.largest(), NEG_INF);
    float m = top;
    for (int bit = GROUP / 2; bit > 0; bit /= 2) m = fmaxf(m, group_partner(m, bit));
    float d = v.weigh(origin(m), scale);
    for (int bit = GROUP / 2; bit > 0; bit /= 2) d += group_partner(d, bit);
    const float bar = below(__shfl_sync(ALL, sorted<GROUP>(top), K - 1, GROUP));

    // Who passes the bar, and how many do so in the lanes before.
    unsigned left = 0;
    for (int e = 0; e < EACH; ++e) left |= (unsigned)!(v.v[e] <= bar) << e;
    if (bar != bar)                                 // everything passes: keep what lies in the row
        for (int e = 0; e < EACH; ++e)
            if (column<GROUP>(j, lane, e) < 0 || column<GROUP>(j, lane, e) >= N) left &= ~(1u << e);
    int before = __popc(left);
    for (int bit = 1; bit < GROUP; bit *= 2) {
        const int sum = __shfl_up_sync(ALL, before, bit, GROUP);
        if (lane >= bit) before += sum;
    }
    const int count = __shfl_sync(ALL, before, GROUP - 1, GROUP);
    before -= __popc(left);

    const auto put = [&](int i, Key key) {
        p[row * K + i] = __fdividef(power_of_2((key_logit(key) - m) * scale), d);
        indices[row * K + i] = key_column(key);
    };
    if (!__any_sync(ALL, count > ROOM)) {           // the usual case
        for (int at = before; left; ++at) {
            const int e = 31 - __clz(left);
            left ^= 1u << e;
            keys[group][at] = make_key(v.pick(e), column<GROUP>(j, lane, e));
        }
        if (lane >= count) keys[group][lane] = 0;   // so that the first GROUP are compared without a question
        __syncwarp();
        for (int i = lane; i < count; i += GROUP) {
            const Key key = keys[group][i];
            int place = 0;
            for (int other = 0; other < GROUP; ++other) place += keys[group][other] > key;
            #pragma unroll 1
            for (int other = GROUP; other < count; ++other) place += keys[group][other] > key;
            if (place < K) put(place, key);
        }
    } else {                                        // many equal or masked logits: K times the best of what is left
        for (int i = 0; i < K; ++i) {
            Key own = 0;
            for (int e = 0; e < EACH; ++e)
                if (left >> e & 1) own = larger(own, make_key(v.v[e], column<GROUP>(j, lane, e)));
            Key best = own;
            for (int bit = GROUP / 2; bit > 0; bit /= 2) best = larger(best, group_partner(best, bit));
            for (int e = 0; e < EACH; ++e)
                if (best == own && column<GROUP>(j, lane, e) == key_column(best)) left &= ~(1u << e);
            if (lane == 0 && row < M) put(i, best);
        }
    }
    if (lane == 0 && row < M) lse[row] = m * inverse + logf(d);
}
