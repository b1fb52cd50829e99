// Softmax and top-k for short rows: GROUP lanes hold a row in registers, and several rows share a warp.
//
// New:     against online_fused.cu: no list while the row is read.  The K-th largest of the lanes' maxima is a bar that few
//          logits reach.  The columns of those few go to shared memory, and from there evenly to the lanes, which sort them.
//          16-bit logits stay in pairs (pairs.h): only the exponentials need floats.
// Traffic: 1 read per element; the few that reach the bar are read again, mostly from L1.
// Launch:  grid ceil(M * GROUP / 128), block 128 threads.
// Limits:  K up to GROUP; N up to GROUP * EACH, less WIDTH - 1 where rows start at addresses that are no multiples of 16,
//          and up to 8192.  Otherwise as online_fused.cu.
#include "topk/pairs.h"

#ifndef GROUP
#define GROUP 8                                     // lanes that share a row: 8, 16 or 32; compile with -DGROUP=...
#endif
#ifndef BLOCKS
#define BLOCKS 1                                    // that a multiprocessor must hold at once: compile with -DBLOCKS=...
#endif
// An older GPU has room for half as many: it unpacks the pairs, or holds fewer threads.
#define AT_ONCE (__CUDA_ARCH__ < PACKED_SINCE ? (BLOCKS + 1) / 2 : BLOCKS)
#define WORDS ((PAIRS + 15) / 16)                   // for a bit each logit
static_assert(K <= GROUP && 32 % GROUP == 0 && GROUP * EACH <= 8192, "see Limits");

extern "C" __global__ void __launch_bounds__(128, AT_ONCE)
softmax_topk_short(const T* __restrict__ x, float* __restrict__ p, int* __restrict__ indices, float* __restrict__ lse,
                   int M, int N, float inverse) {
    __shared__ unsigned short columns[128 / GROUP][GROUP * EACH];               // of a row's logits that reach the bar
    const int lane = threadIdx.x % GROUP, group = threadIdx.x / GROUP;
    const long long place = (long long)blockIdx.x * (128 / GROUP) + group;
    const long long row = place < M ? place : M - 1;        // lanes without a row work along on the last, to meet the shuffles
    x += row * N;
    const float scale = inverse * LOG2_E;           // inverse is 1 / temperature

    // The only pass over memory.
    const int j = first_column(x);
    Vectors raw;
    raw.load<GROUP>(x, j, lane, N);
    const Pairs v(raw);

    // Two maxima a lane, sorted over the lanes: two lists.  The first of both make m.
    const Pair top = sorted<GROUP>(v.largest());
    const float2 firsts = numbers(from<GROUP>(top, 0));
    const float m = fmaxf(firsts.x, firsts.y);

    // The K largest of both lists: lane i takes the larger of entry i here and entry K - 1 - i there.  The bar is the least.
    const float opposite = numbers(from<GROUP>(top, (K - 1 - lane) & (GROUP - 1))).y;
    float bar = lane < K ? fmaxf(numbers(top).x, opposite) : -NEG_INF;
    for (int bit = GROUP / 2; bit > 0; bit /= 2) bar = fminf(bar, partner(bar, bit));
    if (fabsf(bar) < SMALLEST) bar = -SMALLEST;     // all that counts as 0 reaches a bar of 0

    // The normalizer.
    float d = v.weigh(origin(m), scale);
    for (int bit = GROUP / 2; bit > 0; bit /= 2) d += partner(d, bit);

    // Who reaches the bar, and how many do so in this lane and those before.
    unsigned left[WORDS] = {};
    for (int i = 0; i < PAIRS; ++i) left[i / 16] |= reaching(v.v[i], pair(bar, bar)) << i % 16;
    int own = 0;
    for (int w = 0; w < WORDS; ++w) own += __popc(left[w]);
    int end = own;
    for (int bit = 1; bit < GROUP; bit *= 2) {
        const int before = __shfl_up_sync(ALL, end, bit, GROUP);
        if (lane >= bit) end += before;
    }
    const int count = __shfl_sync(ALL, end, GROUP - 1, GROUP);

    // Their columns, side by side.
    unsigned short* to = &columns[group][end - own];
    for (int w = 0; w < WORDS; ++w)
        while (left[w]) {
            const int bit = 31 - __clz(left[w]);    // 16 for the second of a pair, and the number of the pair
            left[w] ^= 1u << bit;
            *to++ = column<GROUP>(j, lane, 2 * (16 * w + bit % 16) + bit / 16);
        }
    __syncwarp();

    // GROUP of them at a time, one a lane: the best so far, merged with the next.  What lies outside the row has no key.
    const auto key = [&](int i) -> ShortKey {
        const int at = i < count ? columns[group][i] : N;
        return at < N ? shortened(make_key(x[at], at)) : 0;
    };
    ShortKey best = sorted<GROUP>(key(lane));
    for (int i = GROUP; __any_sync(ALL, i < count); i += GROUP)
        best = merged<GROUP>(best, sorted<GROUP, false>(key(i + lane)));

    if (place < M && lane < K) {
        p[row * K + lane] = __fdividef(power_of_2((key_logit(lengthened(best)) - m) * scale), d);
        indices[row * K + lane] = key_column(lengthened(best));
    }
    if (place < M && lane == 0) lse[row] = m * inverse + logf(d);
}
