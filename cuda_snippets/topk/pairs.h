// A lane's part of a row as pairs of logits: two in a register if they have 16 bits, and one instruction for both.
#pragma once
#include "topk/keys.h"

#define PAIRS (EACH / 2)
#if defined(BF16)
#define PACKED_SINCE 900                            // the GPUs that compare pairs; on older ones they are unpacked for it
#else
#define PACKED_SINCE 800
#endif

// Of each of the two; fmaxf, fminf and the instructions for 16 bits pass over NaN.
#if (defined(HALF) || defined(BF16)) && __CUDA_ARCH__ >= PACKED_SINCE
__device__ inline Pair larger(Pair a, Pair b) { return __hmax2(a, b); }
__device__ inline Pair smaller(Pair a, Pair b) { return __hmin2(a, b); }
// Bit 0 if the first reaches its bar, bit 16 if the second does; NaN reaches every bar.
__device__ inline unsigned reaching(Pair v, Pair bars) { return __hgeu2_mask(v, bars) & 0x10001; }
#else
__device__ inline Pair larger(Pair a, Pair b) {
    const auto x = numbers(a), y = numbers(b);
    return pair(fmaxf(x.x, y.x), fmaxf(x.y, y.y));
}
__device__ inline Pair smaller(Pair a, Pair b) {
    const auto x = numbers(a), y = numbers(b);
    return pair(fminf(x.x, y.x), fminf(x.y, y.y));
}
__device__ inline unsigned reaching(Pair v, Pair bars) {
    const auto x = numbers(v), bar = numbers(bars);
    return (unsigned)!(x.x < bar.x) | (unsigned)!(x.y < bar.y) << 16;
}
#endif

#if defined(HALF) || defined(BF16)
template <int LANES> __device__ inline Pair from(Pair v, int lane) { return __shfl_sync(ALL, v, lane, LANES); }

// A key in 32 bits.  A 16-bit logit leaves the last 13 bits of a float empty: room for a column below 8192.
typedef unsigned ShortKey;
#define COLUMN 0x1fffu
__device__ inline ShortKey shortened(Key key) { return ((unsigned)(key >> 32) & ~COLUMN) | ((unsigned)key & COLUMN); }
__device__ inline Key lengthened(ShortKey key) {                // the empty bits are 0, and inverted if the logit is negative
    const unsigned order = (int)key < 0 ? key & ~COLUMN : key | COLUMN;
    return (Key)order << 32 | key | ~COLUMN;
}
#else
__device__ inline Pair partner(Pair v, int bit) { return make_float2(partner(v.x, bit), partner(v.y, bit)); }
template <int LANES> __device__ inline Pair from(Pair v, int lane) {
    return make_float2(__shfl_sync(ALL, v.x, lane, LANES), __shfl_sync(ALL, v.y, lane, LANES));
}
typedef Key ShortKey;
__device__ inline ShortKey shortened(Key key) { return key; }
__device__ inline Key lengthened(ShortKey key) { return key; }
#endif

struct Pairs {
    Pair v[PAIRS];

    __device__ Pairs(const Vectors& raw) {
        for (int i = 0; i < PAIRS; ++i) v[i] = ((const Pair*)raw.vector)[i];
    }
    // The largest of the first of all pairs, and of the second; passes over NaN.
    __device__ Pair largest() const {
        Pair top = pair(NEG_INF, NEG_INF);
        #pragma unroll
        for (int i = 0; i < PAIRS; ++i) top = larger(top, v[i]);
        return top;
    }
    // The sum of exp((x - m) / temperature), as Logits::weigh().
    __device__ float weigh(float m, float scale) const {
        const float shift = -m * scale;
        float2 d = make_float2(0, 0);
        if (fabsf(shift) < 1e6f) {
            for (int i = 0; i < PAIRS; ++i) {
                const float2 x = numbers(v[i]);
                d.x += power_of_2(fmaf(x.x, scale, shift)), d.y += power_of_2(fmaf(x.y, scale, shift));
            }
            return (d.x + d.y) * power_of_2(-fmaf(m, scale, shift));
        }
        for (int i = 0; i < PAIRS; ++i) {
            const float2 x = numbers(v[i]);
            d.x += power_of_2((x.x - m) * scale), d.y += power_of_2((x.y - m) * scale);
        }
        return d.x + d.y;
    }
};
