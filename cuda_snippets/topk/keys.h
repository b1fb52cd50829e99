// Keys, which sort logits together with their columns; and how the lanes of a warp sort.
#pragma once
#include "topk/logits.h"

#ifndef K
#define K 8                                         // how many are selected: compile with -DK=...
#endif

// A logit and its column in one number: larger for a larger logit and, among equal logits, for a lower column.  NaN
// counts as the largest logit; -0 and subnormal numbers count as 0, as they do for every operation of a kernel that CuPy
// compiles (-ftz=true).  No key is 0: that stands for no candidate.
typedef unsigned long long Key;

__device__ inline Key make_key(float logit, int column) {
    const unsigned bits = fabsf(logit) < SMALLEST ? 0 : __float_as_uint(logit);             // -0 and subnormals become 0
    const unsigned order = logit != logit ? ALL : bits ^ ((int)bits < 0 ? ALL : 0x80000000);
    return (Key)order << 32 | (unsigned)~column;
}
__device__ inline int key_column(Key key) { return ~(int)(unsigned)key; }
__device__ inline float key_logit(Key key) {        // NaN for no candidate
    const unsigned order = key >> 32;
    return __uint_as_float(order ^ ((int)order < 0 ? 0x80000000 : ALL));
}

// Of keys, and of floats: the instructions for them pass over NaN.
template <class V> __device__ inline V larger(V a, V b) { return a > b ? a : b; }
template <class V> __device__ inline V smaller(V a, V b) { return a < b ? a : b; }
__device__ inline float larger(float a, float b) { return fmaxf(a, b); }
__device__ inline float smaller(float a, float b) { return fminf(a, b); }
template <class V> __device__ inline V partner(V v, int bit) { return __shfl_xor_sync(ALL, v, bit); }

// The values of LANES neighbouring lanes in descending order, or ascending if not FALLING (bitonic sort).
template <int LANES, bool FALLING = true, class V> __device__ inline V sorted(V v) {
    const int lane = threadIdx.x % LANES;
    for (int run = 2; run <= LANES; run *= 2)
        for (int bit = run / 2; bit > 0; bit /= 2) {
            const V other = partner(v, bit);
            const bool falling = (run == LANES || (lane & run) == 0) == FALLING;
            v = falling == ((lane & bit) == 0) ? larger(v, other) : smaller(v, other);
        }
    return v;
}

// The LANES largest of two lists of that length, one falling and one rising, in descending order: the larger of each lane's
// two.  These rise at most once and fall at most once, so the last exchanges of sorted() sort them.
template <int LANES, class V> __device__ inline V merged(V falling, V rising) {
    V v = larger(falling, rising);
    for (int bit = LANES / 2; bit > 0; bit /= 2) {
        const V other = partner(v, bit);
        v = threadIdx.x & bit ? smaller(v, other) : larger(v, other);
    }
    return v;
}
