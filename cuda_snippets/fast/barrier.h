// A barrier in shared memory that counts bytes (an mbarrier): whoever waits is let through when the announced bytes have come.
// They come with asynchronous stores from the blocks of a cluster.  A GPU of compute capability 9.0 or later.
#pragma once
#ifndef __CPU_DEVICE__

__device__ inline unsigned shared_address(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }

struct ByteBarrier {
    unsigned long long bits;

    // By one thread, before a barrier of the cluster.
    __device__ void init(int bytes) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;\n\tfence.mbarrier_init.release.cluster;\n\t"
                     "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(shared_address(this)), "r"(bytes) : "memory");
    }
    __device__ void wait() {
        int done = 0;
        while (!done)
            asm volatile("{\n\t.reg .pred p;\n\tmbarrier.try_wait.parity.shared::cta.b64 p, [%1], 0;\n\tselp.b32 %0, 1, 0, p;\n\t}"
                         : "=r"(done) : "r"(shared_address(this)) : "memory");
    }
};

// The address of `p`, an object in shared memory, in block `block` of the cluster.
__device__ inline unsigned in_other_block(const void* p, int block) {
    unsigned address;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(shared_address(p)), "r"(block));
    return address;
}

// to[0..1] = (a, b) in another block, whose barrier counts the 8 bytes.
__device__ inline void store_async(unsigned to, float a, float b, unsigned barrier) {
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, [%3];"
                 :: "r"(to), "f"(a), "f"(b), "r"(barrier) : "memory");
}
#endif
