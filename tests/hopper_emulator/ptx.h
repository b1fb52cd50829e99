// Stands for attention/hopper/ptx.h and wgmma.h in tests without a GPU: the same functions in plain C++.
//
// A copy arrives some time after it was started.  A wgmma reads its operands and writes its results only when it is waited for, so that a
// wait that is missing shows.  The warps of a warpgroup begin and end it together.  Where a matrix lies follows from the bits of its
// descriptor and the swizzle, as PTX defines them.
#pragma once

typedef unsigned long long u64;
extern "C" {
void emulator_yield();
void emulator_progress();
void emulator_copy(void* to, const void* from, void* full, int column, int row, int head);
void emulator_wait_stores();
void emulator_meet(int number, int count, int wait);
}

inline unsigned shared_address(const void* p) { return 1024 + (unsigned)((const char*)p - cuda_dynamic_memory); }
inline const T* at_shared(unsigned address) { return (const T*)(cuda_dynamic_memory + address - 1024); }

struct Barrier {
    unsigned char phase, arrivals;
    short left;
    int bytes;

    void init(int n) { phase = 0, arrivals = left = n, bytes = 0; }
    void check() {
        if (left < 0) __trap();
        if (left == 0 && bytes == 0) phase ^= 1, left = arrivals;
        emulator_progress();
    }
    void arrive() { --left, check(); }
    void expect(unsigned n) { bytes += n, --left, check(); }
    void wait(unsigned parity) {
        while (((volatile Barrier*)this)->phase == parity) emulator_yield();
    }
};
static_assert(sizeof(Barrier) == 8, "as on a GPU");
extern "C" inline __attribute__((used)) void emulator_bytes(Barrier* full, int n) { full->bytes -= n, full->check(); }

inline float __fadd_rd(float a, float b) {       // rounded down
    const double sum = (double)a + b;
    const float nearest = (float)sum;
    return nearest > sum ? nextafterf(nearest, -1e38f) : nearest;
}
inline void barriers_are_ready() {}
struct alignas(64) TensorMap { u64 opaque[16]; };
inline void copy_tile(void* to, const TensorMap& from, Barrier& full, int column, int row, int head) {
    if (shared_address(to) % 1024) __trap();
    emulator_copy(to, from.opaque, &full, column, row, head);
}
inline void store_tile(const TensorMap& to, const void* from, int column, int row, int head) {
    if (shared_address(from) % 1024 || row < 0) __trap();        // a GPU refuses rows below 0 here; copy_tile may have them
    emulator_copy((void*)from, to.opaque, nullptr, column, row, head);
}
inline void seen_by_copies() {}
inline void wait_stores() { emulator_wait_stores(); }
//MATRIX_AT//

struct Product {
    float (*c)[4];
    int n, add;
    u64 a, b;
    const unsigned* registers;                  // of A, or nullptr
};
struct Pending {                                // of a thread: products that were started, and how many each group has
    Product products[64];
    int groups[16], first, last, first_group, last_group, open;
};
inline Pending& pending() {
    static Pending of_thread[1024];
    return of_thread[threadIdx.x];
}
inline void start(const Product& product) {
    Pending& p = pending();
    p.products[p.last++ % 64] = product, ++p.open;
    if (p.last - p.first > 64) __trap();
}

// Element (i, k) of a matrix whose rows lie along memory, or column i at k of one that is read by columns.
inline float element(u64 d, int i, int k, bool columns) {
    const unsigned start = (d & 0x3fff) << 4, lead = (d >> 16 & 0x3fff) << 4, stride = (d >> 32 & 0x3fff) << 4;
    if (d >> 62 != 1) __trap();                 // the swizzle of 128 bytes
    unsigned address = columns ? start + i / 64 * lead + k / 8 * stride + k % 8 * 128 + i % 64 * 2 : start + i / 8 * stride + i % 8 * 128 + k * 2;
    address ^= (address >> 7 & 7) << 4;
    return (float)*at_shared(address);
}

inline void multiply(const Product& p) {
    const int warp = threadIdx.x % 128 / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    float a[2][16];                             // rows g and g + 8 of this warp
    for (int r = 0; r < 2; ++r)
        for (int k = 0; k < 16; ++k)
            if (!p.registers) a[r][k] = element(p.a, 16 * warp + g + 8 * r, k, false);
    if (p.registers)
        for (int s = 0; s < 4; ++s)
            for (int i = 0; i < 4; ++i) {
                const unsigned bits = __shfl_sync(~0u, p.registers[i], 4 * g + s);
                const float2 two = numbers(*(const Pair*)&bits);
                a[i % 2][i / 2 * 8 + 2 * s] = two.x, a[i % 2][i / 2 * 8 + 2 * s + 1] = two.y;
            }
    for (int n = 0; n < p.n; ++n)
        for (int c = 0; c < 2; ++c) {
            float b[16];
            for (int k = 0; k < 16; ++k) b[k] = element(p.b, 8 * n + 2 * t + c, k, p.registers);
            for (int r = 0; r < 2; ++r) {
                float sum = p.add ? p.c[n][2 * r + c] : 0;
                for (int k = 0; k < 16; ++k) sum += a[r][k] * b[k];
                p.c[n][2 * r + c] = sum;
            }
        }
}

template <int n> inline void wgmma(float (&c)[n][4], u64 a, u64 b, int add) { start({c, n, add, a, b, nullptr}); }
template <int n> inline void wgmma(float (&c)[n][4], const unsigned (&a)[4], u64 b) { start({c, n, 1, 0, b, a}); }
inline void join_warps() { emulator_meet(8 + threadIdx.x / 128, 128, 1); }
inline void begin_wgmma() { emulator_meet(20 + threadIdx.x / 128, 128, 1); }
inline void end_wgmma() {
    Pending& p = pending();
    p.groups[p.last_group++ % 16] = p.open, p.open = 0;
}
template <int left> inline void wait_wgmma() {
    Pending& p = pending();
    for (; p.last_group - p.first_group > left; ++p.first_group)
        for (int i = 0; i < p.groups[p.first_group % 16]; ++i) multiply(p.products[p.first++ % 64]);
    join_warps();
}
template <int n> inline void settle(float (&)[n][4]) {}
template <int count> inline void take_registers() {}
template <int count> inline void give_registers() {}
inline void pass_turn(int number) { emulator_meet(number, 256, 0); }
inline void wait_turn(int number) { emulator_meet(number, 256, 1); }
