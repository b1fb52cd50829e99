// Where a thread keeps its pieces of dy until the sum of the row is known: in registers or, with -DPARKED, in shared memory,
// which doubles what a multiprocessor can hold.
#pragma once

#ifndef VECTORS
#define VECTORS 4                                   // pieces of 16 bytes a thread has of each row
#endif

// Makes the compiler compute again what it needs of these bytes, instead of keeping it in more registers.
__device__ inline void forget_results(uint4& bytes) {
#ifndef __CPU_DEVICE__
    asm volatile("" : "+r"(bytes.x), "+r"(bytes.y), "+r"(bytes.z), "+r"(bytes.w));
#endif
}

#ifdef PARKED
#include <cuda_pipeline.h>
extern __shared__ uint4 parked[];                   // a thread reads only what it copied itself, so it waits for no other
struct Kept {
    __device__ uint4* place(int i) const { return parked + i * blockDim.x + threadIdx.x; }
    __device__ void load(int i, const uint4* from) { __pipeline_memcpy_async(place(i), from, 16); }
    __device__ void wait() { __pipeline_commit(), __pipeline_wait_prior(0); }
    __device__ uint4 piece(int i) const { return *place(i); }
    __device__ void forget(int i) {}
};
#else
struct Kept {
    uint4 bytes[VECTORS];                           // in registers: every index is known once the loops are unrolled
    __device__ void load(int i, const uint4* from) { bytes[i] = *from; }
    __device__ void wait() {}
    __device__ uint4 piece(int i) const { return bytes[i]; }
    __device__ void forget(int i) { forget_results(bytes[i]); }
};
#endif
