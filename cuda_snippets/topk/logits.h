// Reading a row of logits 16 bytes at a time: fp32, fp16 or bf16 in memory, fp32 in registers.  Compile with nothing, -DHALF
// or -DBF16.
#pragma once
#include "reduce.h"
#include "types.h"

#define IN_WORD (4 / (int)sizeof(T))                // logits in 4 bytes

#if defined(HALF)
__device__ inline unsigned bits_of(T x) { return __half_as_ushort(x); }
__device__ inline float unpack(unsigned word, int i) {          // the first or second of two neighbours in 4 bytes
    const float2 two = numbers(*(const Pair*)&word);
    return i ? two.y : two.x;
}
#elif defined(BF16)
__device__ inline unsigned bits_of(T x) { return __bfloat16_as_ushort(x); }
__device__ inline float unpack(unsigned word, int i) {          // bf16 is the upper half of a float
    return __uint_as_float(i ? word & 0xffff0000 : word << 16);
}
#else
__device__ inline unsigned bits_of(T x) { return __float_as_uint(x); }
__device__ inline float unpack(unsigned word, int) { return __uint_as_float(word); }
#endif

#ifndef LOADS
#define LOADS 4                                     // 16-byte loads that a lane has under way: compile with -DLOADS=...
#endif
#define EACH (LOADS * WIDTH)                        // logits that a lane takes in one step
#define ALL 0xffffffff                              // every lane of the warp
#define LOG2_E 1.44269504f
#define SMALLEST 1.17549435e-38f                    // what is nearer to 0 is subnormal, and counts as 0

// A step takes LANES * EACH columns, from column j on, vectors of WIDTH side by side.  Here stands element e of a lane.
template <int LANES> __device__ inline int column(int j, int lane, int e) {
    return j + (e / WIDTH * LANES + lane) * WIDTH + e % WIDTH;
}
// Where a row's first step starts: at column 0 or a little before, so that its loads are aligned wherever the row begins.
__device__ inline int first_column(const T* row) { return -(int)((size_t)row % 16 / sizeof(T)); }

// The vector at column `at`; -inf stands for what lies outside the row.
__device__ inline uint4 load_vector(const T* __restrict__ row, int at, int N) {
    if (0 <= at && at + WIDTH <= N) return *(const uint4*)(row + at);
    unsigned words[4] = {};
    for (int i = 0; i < WIDTH; ++i) {
        const unsigned bits = 0 <= at + i && at + i < N ? bits_of(row[at + i]) : MINUS_INF >> 16 * (IN_WORD - 1);
        words[i / IN_WORD] |= bits << 16 * (i % IN_WORD);
    }
    return make_uint4(words[0], words[1], words[2], words[3]);
}

// 2^x by the hardware's instruction alone; exp2f adds three for results below 2^-126, which are 0 here.
__device__ inline float power_of_2(float x) {
#ifdef __CPU_DEVICE__
    return exp2f(x);
#else
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#endif
}

// A lane's part of one step, as it comes from memory ...
struct Vectors {
    uint4 vector[LOADS];
    template <int LANES> __device__ void load(const T* __restrict__ row, int j, int lane, int N) {
        if (0 <= j && j + LANES * EACH <= N) {      // the whole step lies in the row: no questions
            for (int u = 0; u < LOADS; ++u) vector[u] = *(const uint4*)(row + column<LANES>(j, lane, u * WIDTH));
        } else {
            for (int u = 0; u < LOADS; ++u) vector[u] = load_vector(row, column<LANES>(j, lane, u * WIDTH), N);
        }
    }
};

// ... and as numbers.
struct Logits {
    float v[EACH];

    __device__ Logits(const Vectors& raw) {
        for (int u = 0; u < LOADS; ++u) {
            const unsigned words[4] = {raw.vector[u].x, raw.vector[u].y, raw.vector[u].z, raw.vector[u].w};
            for (int i = 0; i < WIDTH; ++i) v[u * WIDTH + i] = unpack(words[i / IN_WORD], i % IN_WORD);
        }
    }
    // The largest; fmaxf passes over NaN, so this is NaN only if there is nothing else.
    __device__ float largest() const {
        float top = v[0];
        for (int e = 1; e < EACH; ++e) top = fmaxf(top, v[e]);
        return top;
    }
    __device__ float sum() const {
        float total = 0;
        for (int e = 0; e < EACH; ++e) total += v[e];
        return total;
    }
    // The sum of exp((x - m) / temperature), with scale = log2(e) / temperature.  NaN if a logit is NaN.
    __device__ float weigh(float m, float scale) const {
        const float shift = -m * scale;
        float d = 0;
        if (fabsf(shift) < 1e6f) {                  // (x - m) * scale in one instruction, and what rounded `shift`, at the end
            for (int e = 0; e < EACH; ++e) d += power_of_2(fmaf(v[e], scale, shift));
            return d * power_of_2(-fmaf(m, scale, shift));
        }
        for (int e = 0; e < EACH; ++e) d += power_of_2((v[e] - m) * scale);
        return d;
    }
    // v[e] for an e that only the run knows, by halving: registers have no addresses, an index would send v to memory.  For an
    // EACH that is a power of two.
    __device__ float pick(int e) const {
        float w[EACH];
        for (int i = 0; i < EACH; ++i) w[i] = v[i];
        for (int half = EACH / 2; half > 0; half /= 2)
            for (int i = 0; i < half; ++i) w[i] = e & half ? w[i + half] : w[i];
        return w[0];
    }
};
