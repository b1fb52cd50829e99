// The k best logits of a part of a row, sorted, spread over the lanes of one warp: the third member beside (m, d).
#pragma once
#include "topk/keys.h"

#define SLOTS ((K + 31) / 32)                       // entries of the list that a lane holds
static_assert(1 <= K && K <= 64, "see Limits");
static_assert(EACH <= 32 && (LOADS & (LOADS - 1)) == 0, "a lane marks its logits with the bits of one word, and halves them");

// A float below v that is not flushed to v, mostly the next; NaN below -inf.
__device__ inline float below(float v) {
    return __int_as_float(fabsf(v) < SMALLEST ? 0x80800000 : __float_as_int(v) + (v > 0 ? -1 : 1));
}

struct Candidates {
    Key list[SLOTS];                                // entry 32 * s + lane, in descending order
    Key worst;                                      // entry K - 1: what a newcomer must beat
    float bar;                                      // its logit; NaN lets everything pass, as !(x <= NaN)

    __device__ Candidates() {
        for (int s = 0; s < SLOTS; ++s) list[s] = 0;
        worst = 0;
        bar = key_logit(0);
    }

    // A newcomer that beats `worst`, the same in all lanes: what it beats moves back one place, and the last drops out.
    __device__ void insert(Key key) {
        const int lane = threadIdx.x % 32;
        for (int s = SLOTS - 1; s >= 0; --s) {
            Key before = __shfl_up_sync(ALL, list[s], 1);
            const Key last = s > 0 ? __shfl_sync(ALL, list[0], 31) : ~(Key)0;
            if (lane == 0) before = last;
            list[s] = larger(list[s], smaller(before, key));
        }
        worst = __shfl_sync(ALL, list[SLOTS - 1], (K - 1) % 32);
    }

    // Up to one newcomer a lane, 0 for none.
    __device__ void offer(Key key) {
        while (const unsigned better = __ballot_sync(ALL, key > worst)) {
            const int from = 31 - __clz(better);    // the last lane first: in a rising row it has the best
            insert(__shfl_sync(ALL, key, from));
            if (threadIdx.x % 32 == from) key = 0;
        }
    }

    // A bar for the first step, of which `top` is this lane's largest: K logits or more reach the K-th largest of 32 maxima.
    __device__ void raise_bar(float top) {
        if (K <= 32) bar = below(__shfl_sync(ALL, sorted<32>(fmaxf(top, NEG_INF)), (K - 1) % 32));
    }

    // The logits of the step at column j.
    __device__ void consider(const Logits& x, int j, int N) {
        const int lane = threadIdx.x % 32;
        unsigned left = 0;                          // a bit for each logit that may enter
        for (int e = 0; e < EACH; ++e) left |= (unsigned)!(x.v[e] <= bar) << e;
        while (__any_sync(ALL, left)) {
            Key key = 0;
            if (left) {
                const int e = 31 - __clz(left), at = column<32>(j, lane, e);
                left ^= 1u << e;
                if (0 <= at && at < N) key = make_key(x.pick(e), at);
            }
            offer(key);
        }
        bar = key_logit(worst);
    }

    // Take over the best of another list, K entries in memory.  Of entry i here and entry 31 - i there, the larger belongs
    // to the 32 largest of both.  Those rise at most once and fall at most once, so five exchanges sort them.
    __device__ void merge(const Key* other) {
        const int lane = threadIdx.x % 32;
        for (int s = 0; s < SLOTS; ++s) {
            const int opposite = 32 * SLOTS - 1 - (32 * s + lane);
            if (opposite < K) list[s] = larger(list[s], other[opposite]);
        }
        if (SLOTS == 2) {
            const Key low = smaller(list[0], list[SLOTS - 1]);
            list[0] = larger(list[0], list[SLOTS - 1]);
            list[SLOTS - 1] = low;
        }
        for (int bit = 16; bit > 0; bit /= 2)
            for (int s = 0; s < SLOTS; ++s) {
                const Key entry = __shfl_xor_sync(ALL, list[s], bit);
                list[s] = lane & bit ? smaller(list[s], entry) : larger(list[s], entry);
            }
    }

    // Entry i of the list goes to memory at to[i].
    __device__ void store(Key* to) const {
        const int lane = threadIdx.x % 32;
        for (int s = 0; s < SLOTS; ++s)
            if (32 * s + lane < K) to[32 * s + lane] = list[s];
    }
};
