// The instructions of tensor cores and of asynchronous copies, each in one short function.  The CPU device gets a plain
// C++ twin of each, so that it runs the same kernels.  Numbers are bf16, or fp16 with -DHALF; sums are fp32.
#pragma once
#if !defined(HALF) && !defined(BF16)
#define BF16
#endif
#include "types.h"

#if __CUDA_ARCH__ < 800
#error "mma.sync of 16 x 8 x 16 and cp.async need a GPU of compute capability 8.0 or later: use attention/tiled.cu in fp32."
#endif

#ifdef HALF
#define MMA "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32"
#else
#define MMA "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32"
#endif

// Two numbers of 16 bits in one register, the first in the low half: what the tensor cores read.
__device__ inline unsigned pack(float a, float b) {
    const Pair p = pair(a, b);
    return *(const unsigned*)&p;
}

// C += A B for A [16, 16], B [16, 8], C [16, 8], spread over a warp.  Lane 4g + t holds, always two neighbours in a register,
//     a[0] row g, columns 2t, 2t+1   a[1] row g+8, the same   a[2] row g, columns 2t+8, 2t+9   a[3] row g+8, the same
//     b0 rows 2t, 2t+1 of column g   b1 rows 2t+8, 2t+9
//     c[0], c[1] row g, columns 2t, 2t+1   c[2], c[3] row g+8, the same
__device__ inline void mma(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
#ifndef __CPU_DEVICE__
    asm volatile(MMA " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#else
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;      // 32 shuffles fetch two rows of A and two columns of B
    const auto add = [](float& sum, unsigned x, unsigned y) {
        const float2 u = numbers(*(const Pair*)&x), w = numbers(*(const Pair*)&y);
        sum += u.x * w.x + u.y * w.y;
    };
    for (int half = 0; half < 2; ++half)
        for (int s = 0; s < 4; ++s) {
            const unsigned upper = __shfl_sync(~0u, a[2 * half], 4 * g + s), lower = __shfl_sync(~0u, a[2 * half + 1], 4 * g + s);
            const unsigned left = __shfl_sync(~0u, half ? b1 : b0, 8 * t + s), right = __shfl_sync(~0u, half ? b1 : b0, 8 * t + 4 + s);
            add(c[0], upper, left), add(c[1], upper, right), add(c[2], lower, left), add(c[3], lower, right);
        }
#endif
}

// Four matrices of 8 x 8 from shared memory: lane i gives the address of row i % 8 of matrix i / 8, 16 bytes.  r[n] of lane
// 4g + t becomes row g, columns 2t and 2t+1, of matrix n.
__device__ inline void load_matrices(unsigned (&r)[4], const void* row) {
#ifndef __CPU_DEVICE__
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"((unsigned)__cvta_generic_to_shared(row)) : "memory");
#else
    const int lane = threadIdx.x % 32;
    for (int n = 0; n < 4; ++n) r[n] = ((const unsigned*)__shfl_sync(~0u, (size_t)row, 8 * n + lane / 4))[lane % 4];
#endif
}

// The same, each matrix transposed: r[n] becomes rows 2t and 2t+1 of column g.
__device__ inline void load_transposed(unsigned (&r)[4], const void* row) {
#ifndef __CPU_DEVICE__
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"((unsigned)__cvta_generic_to_shared(row)) : "memory");
#else
    load_matrices(r, row);
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4, shift = g % 2 * 16;
    for (int n = 0; n < 4; ++n) {
        const unsigned one = __shfl_sync(~0u, r[n], 8 * t + g / 2), next = __shfl_sync(~0u, r[n], 8 * t + 4 + g / 2);
        r[n] = (one >> shift & 0xffff) | (next >> shift) << 16;
    }
#endif
}

// Start to copy 16 bytes from global to shared memory, or 16 bytes of zeros unless `exists`.  The twin copies at once.
__device__ inline void copy_async(uint4* shared, const uint4* global, bool exists) {
#ifndef __CPU_DEVICE__
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;"
                 :: "r"((unsigned)__cvta_generic_to_shared(shared)), "l"(global), "r"(exists ? 16 : 0) : "memory");
#else
    *shared = exists ? *global : make_uint4(0, 0, 0, 0);
#endif
}

// All copies started since the last call become one group; then: wait until at most `left` groups are still under way.
__device__ inline void end_group() {
#ifndef __CPU_DEVICE__
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
template <int left> __device__ inline void wait_groups() {
#ifndef __CPU_DEVICE__
    asm volatile("cp.async.wait_group %0;" :: "n"(left) : "memory");
#endif
}

// 2^x with one instruction, relative error below 2^-22; 0 below 2^-126.
__device__ inline float power_of_2(float x) {
#ifndef __CPU_DEVICE__
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#else
    return exp2f(x);
#endif
}
