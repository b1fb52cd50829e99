// The instructions of a Hopper GPU, each in one short function: barriers that count bytes, copies of whole tiles, and the
// multiplications of a warpgroup (128 threads, 4 warps), which run beside its other instructions.
#pragma once
#ifdef __CPU_DEVICE__
#error "attention/hopper/ needs a GPU of compute capability 9.0: use attention/mma_bands.cu, which the CPU device runs too."
#elif !defined(__CUDA_ARCH_FEAT_SM90_ALL)
#error "attention/hopper/ needs a GPU of compute capability 9.0, compiled for sm_90a: use attention/mma_bands.cu."
#endif

typedef unsigned long long u64;

__device__ inline unsigned shared_address(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }

// A barrier in shared memory.  Its phases are numbered 0, 1, 2, …; one ends when all arrivals and all announced bytes have come.
struct Barrier {
    u64 bits;

    __device__ void init(int arrivals) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(shared_address(this)), "r"(arrivals) : "memory");
    }
    __device__ void arrive() {
        asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(shared_address(this)) : "memory");
    }
    // Arrive, and let the phase last until so many bytes more have come.
    __device__ void expect(unsigned bytes) {
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(shared_address(this)), "r"(bytes) : "memory");
    }
    // Until the last phase whose number has this parity is over.  Of a new barrier, the phase before phase 0 counts as over.
    __device__ void wait(unsigned parity) {
        asm volatile("{\n\t.reg .pred p;\nAGAIN:\n\tmbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n\t"
                     "@p bra DONE;\n\tbra AGAIN;\nDONE:\n\t}" :: "r"(shared_address(this)), "r"(parity) : "memory");
    }
};

// After `init`, by the same thread: what copies tiles sees the barriers too.
__device__ inline void barriers_are_ready() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

// Where an array [heads, rows, D] lies and how it is cut; made by helpers/hopper.py.
struct alignas(64) TensorMap { u64 opaque[16]; };

// Start to copy the rows from `row` on, 64 columns from `column` on, of a head.  One thread starts it; zeros come for rows that do not
// exist.  `full` counts the bytes.
__device__ inline void copy_tile(void* to, const TensorMap& from, Barrier& full, int column, int row, int head) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], [%2];"
                 :: "r"(shared_address(to)), "l"(&from), "r"(shared_address(&full)), "r"(column), "r"(row), "r"(head) : "memory");
}

// Start to write such a tile back: of 64 columns, the rows that exist.  Each thread that filled it calls `seen_by_copies` before.
__device__ inline void store_tile(const TensorMap& to, const void* from, int column, int row, int head) {
    asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%2, %3, %4}], [%1];\n\tcp.async.bulk.commit_group;"
                 :: "l"(&to), "r"(shared_address(from)), "r"(column), "r"(row), "r"(head) : "memory");
}
__device__ inline void seen_by_copies() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
// Until the tiles that this thread writes back have left shared memory.
__device__ inline void wait_stores() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }

// What tells wgmma where a matrix lies in shared memory, with the swizzle that copy_tile writes: rows of 128 bytes, 8 of them a
// pattern of 1,024 bytes.  `panel`: the bytes from 64 columns to the next 64, for a matrix that is read by columns.
// To add 1 moves it by 16 bytes.
__device__ inline u64 matrix_at(const void* p, unsigned panel = 0) {
    return (u64)(shared_address(p) >> 4) | (u64)(panel >> 4) << 16 | (u64)(1024 >> 4) << 32 | (u64)1 << 62;
}

// Before a group of wgmma: registers that it uses are written.  After it: this was the group.  Then: wait until `left` groups still run.
__device__ inline void begin_wgmma() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void end_wgmma() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int left> __device__ inline void wait_wgmma() { asm volatile("wgmma.wait_group.sync.aligned %0;" :: "n"(left) : "memory"); }

// The compiler does not know that wgmma still writes registers after its instruction: from here on it may read these.
template <int n> __device__ __forceinline__ void settle(float (&c)[n][4]) {
#pragma unroll
    for (int i = 0; i < n; ++i) asm volatile("" : "+f"(c[i][0]), "+f"(c[i][1]), "+f"(c[i][2]), "+f"(c[i][3]) :: "memory");
}

// A warpgroup takes or gives back registers: `count` a thread from here on.
template <int count> __device__ inline void take_registers() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" :: "n"(count)); }
template <int count> __device__ inline void give_registers() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" :: "n"(count)); }

// The four warps of a warpgroup wait for each other.  A group of wgmma does the same.
__device__ inline void join_warps() { asm volatile("bar.sync %0, 128;" :: "r"(8 + threadIdx.x / 128) : "memory"); }

// Two warpgroups meet at barrier `number`: one goes on at once, the other waits for it.
__device__ inline void pass_turn(int number) { asm volatile("bar.arrive %0, 256;" :: "r"(number) : "memory"); }
__device__ inline void wait_turn(int number) { asm volatile("bar.sync %0, 256;" :: "r"(number) : "memory"); }
