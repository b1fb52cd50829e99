// The CUDA C++ vocabulary for a host compiler: what nvcc knows without any #include, in plain C++17.
//
// Every kernel of the CPU device is compiled behind this header.  Anything that needs the other threads of the block
// (barriers, shuffles, atomics) is a call into runtime.cpp, which owns the fibers; the rest is ordinary arithmetic.
#pragma once
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define __global__
#define __device__
#define __host__
#define __cuda_variable__ __attribute__((section("cuda_global"), used))  // compiler.py marks __device__ variables with it
#define __constant__ static __cuda_variable__
#define __shared__ static __attribute__((section("cuda_shared"), aligned(128)))
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __align__(n) __attribute__((aligned(n)))
#define __launch_bounds__(...)
#define __grid_constant__
#define __managed__ static_assert(false, "managed memory is not part of the CPU device");
#define __CUDA_ARCH__ 800
#define __CUDACC__ 1
#define __CPU_DEVICE__ 1
#define warpSize 32
#define HERE const char *file = __builtin_FILE(), int line = __builtin_LINE()  // where in the .cu a call stands

struct uint3 { unsigned x, y, z; };
struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};

extern "C" {  // runtime.cpp
uint3 cuda_thread_idx() __attribute__((const));
uint3 cuda_block_idx() __attribute__((const));
uint3 cuda_block_dim() __attribute__((const));
uint3 cuda_grid_dim() __attribute__((const));
void *cuda_dynamic_shared() __attribute__((const));  // `extern __shared__ T s[]` becomes a pointer to it, see compiler.py
int cuda_barrier(int kind, int predicate, const char *file, int line);
uint64_t cuda_collective(int kind, unsigned mask, uint64_t value, int argument, int width, const char *file, int line);
void cuda_atomic_enter(void *p, int bytes);
uint64_t cuda_peek(void *p, int bytes);
uint64_t cuda_compare_and_swap(void *p, int bytes, uint64_t expected, uint64_t desired);
void cuda_fence();
void cuda_count(int what);
void cuda_trap(const char *why) __attribute__((noreturn));
int cuda_printf(const char *format, ...) __attribute__((format(printf, 1, 2)));
long long cuda_clock();
}
#define threadIdx cuda_thread_idx()
#define blockIdx cuda_block_idx()
#define blockDim cuda_block_dim()
#define gridDim cuda_grid_dim()
#define printf cuda_printf
#define clock64 cuda_clock
#define clock() ((int)cuda_clock())
#define abort() cuda_trap("abort() was called")
#define __trap() cuda_trap("__trap() was called")
#define assert(condition) ((condition) ? (void)0 : cuda_trap("assertion failed: " #condition))

// ---- vector types: loaded and stored whole, as one access of their full size --------------------------------------
#define CUDA_VECTOR(name, T, n, alignment, declare, params, init, copy)                                               \
  struct __attribute__((aligned(alignment))) name {                                                                   \
    T declare;                                                                                                        \
    typedef copy Whole __attribute__((may_alias));                                                                    \
    name() = default;                                                                                                 \
    constexpr name params : init {}                                                                                   \
    name(const name &o) { *(Whole *)this = *(const Whole *)&o; }                                                      \
    name &operator=(const name &o) { *(Whole *)this = *(const Whole *)&o; return *this; }                             \
    name(const volatile name &o) { *(Whole *)this = *(const volatile Whole *)&o; }                                    \
  };                                                                                                                  \
  inline name make_##name params { return name params_of_##n; }
#define params_of_2 (x, y)
#define params_of_4 (x, y, z, w)
#define CUDA_COMMA ,
#define CUDA_VECTOR2(name, T, W) \
  CUDA_VECTOR(name, T, 2, 2 * sizeof(T), x CUDA_COMMA y, (T x, T y), x(x) CUDA_COMMA y(y), W)
#define CUDA_VECTOR4(name, T, W)                                                                                \
  CUDA_VECTOR(name, T, 4, (4 * sizeof(T) > 16 ? 16 : 4 * sizeof(T)), x CUDA_COMMA y CUDA_COMMA z CUDA_COMMA w, \
              (T x, T y, T z, T w), x(x) CUDA_COMMA y(y) CUDA_COMMA z(z) CUDA_COMMA w(w), W)
typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef int cuda_int4 __attribute__((vector_size(16)));
CUDA_VECTOR2(float2, float, uint64_t) CUDA_VECTOR2(int2, int, uint64_t) CUDA_VECTOR2(uint2, unsigned, uint64_t)
CUDA_VECTOR2(short2, short, uint32_t) CUDA_VECTOR2(ushort2, ushort, uint32_t)
CUDA_VECTOR2(char2, signed char, uint16_t) CUDA_VECTOR2(uchar2, uchar, uint16_t)
CUDA_VECTOR2(double2, double, cuda_int4) CUDA_VECTOR2(longlong2, long long, cuda_int4)
CUDA_VECTOR2(ulonglong2, unsigned long long, cuda_int4)
CUDA_VECTOR4(float4, float, cuda_int4) CUDA_VECTOR4(int4, int, cuda_int4) CUDA_VECTOR4(uint4, unsigned, cuda_int4)
CUDA_VECTOR4(short4, short, uint64_t) CUDA_VECTOR4(ushort4, ushort, uint64_t)
CUDA_VECTOR4(char4, signed char, uint32_t) CUDA_VECTOR4(uchar4, uchar, uint32_t)
struct float3 { float x, y, z; };
struct int3 { int x, y, z; };
inline float3 make_float3(float x, float y, float z) { return {x, y, z}; }
inline int3 make_int3(int x, int y, int z) { return {x, y, z}; }
inline uint3 make_uint3(unsigned x, unsigned y, unsigned z) { return {x, y, z}; }

// ---- bit casts ----------------------------------------------------------------------------------------------------
template <class To, class From> inline To cuda_bits(From v) {
  static_assert(sizeof(To) == sizeof(From), "a bit cast keeps the size");
  To r;
  memcpy((void *)&r, (const void *)&v, sizeof r);
  return r;
}
template <class T> inline uint64_t cuda_pack(T v) {
  static_assert(sizeof(T) <= 8, "shuffles and atomics move at most 8 bytes");
  uint64_t r = 0;
  memcpy(&r, (const void *)&v, sizeof v);
  return r;
}
template <class T> inline T cuda_unpack(uint64_t bits) {
  T v;
  memcpy((void *)&v, &bits, sizeof v);
  return v;
}
inline int __float_as_int(float v) { return cuda_bits<int>(v); }
inline unsigned __float_as_uint(float v) { return cuda_bits<unsigned>(v); }
inline float __int_as_float(int v) { return cuda_bits<float>(v); }
inline float __uint_as_float(unsigned v) { return cuda_bits<float>(v); }
inline long long __double_as_longlong(double v) { return cuda_bits<long long>(v); }
inline double __longlong_as_double(long long v) { return cuda_bits<double>(v); }
template <class T> inline size_t __cvta_generic_to_shared(T *p) { return (size_t)p; }

// ---- barriers, votes, shuffles ------------------------------------------------------------------------------------
enum { CUDA_SYNC, CUDA_SYNC_COUNT, CUDA_SYNC_AND, CUDA_SYNC_OR };
inline void __syncthreads(HERE) { cuda_barrier(CUDA_SYNC, 0, file, line); }
inline int __syncthreads_count(int p, HERE) { return cuda_barrier(CUDA_SYNC_COUNT, p, file, line); }
inline int __syncthreads_and(int p, HERE) { return cuda_barrier(CUDA_SYNC_AND, p, file, line); }
inline int __syncthreads_or(int p, HERE) { return cuda_barrier(CUDA_SYNC_OR, p, file, line); }
inline void __threadfence() { cuda_fence(); }
inline void __threadfence_block() {}
inline void __threadfence_system() { cuda_fence(); }

enum { CUDA_IDX, CUDA_UP, CUDA_DOWN, CUDA_XOR, CUDA_SYNCWARP, CUDA_ACTIVE, CUDA_BALLOT, CUDA_MATCH_ANY, CUDA_MATCH_ALL,
       CUDA_ADD, CUDA_MIN_S, CUDA_MAX_S, CUDA_MIN_U, CUDA_MAX_U, CUDA_AND, CUDA_OR, CUDA_REDUCE_XOR };
inline void __syncwarp(unsigned mask = ~0u, HERE) { cuda_collective(CUDA_SYNCWARP, mask, 0, 0, 32, file, line); }
inline unsigned __activemask(HERE) { return cuda_collective(CUDA_ACTIVE, ~0u, 0, 0, 32, file, line); }
#define CUDA_SHUFFLE(name, kind, T2)                                                                             \
  template <class T> inline T name(unsigned mask, T v, T2 argument, int width = 32, HERE) {                      \
    return cuda_unpack<T>(cuda_collective(kind, mask, cuda_pack(v), (int)argument, width, file, line));          \
  }
CUDA_SHUFFLE(__shfl_sync, CUDA_IDX, int) CUDA_SHUFFLE(__shfl_up_sync, CUDA_UP, unsigned)
CUDA_SHUFFLE(__shfl_down_sync, CUDA_DOWN, unsigned) CUDA_SHUFFLE(__shfl_xor_sync, CUDA_XOR, int)
inline unsigned __ballot_sync(unsigned mask, int p, HERE) { return cuda_collective(CUDA_BALLOT, mask, p != 0, 0, 32, file, line); }
inline int __any_sync(unsigned mask, int p, HERE) { return __ballot_sync(mask, p, file, line) != 0; }
inline int __all_sync(unsigned mask, int p, HERE) { return __ballot_sync(mask, !p, file, line) == 0; }
template <class T> inline unsigned __match_any_sync(unsigned mask, T v, HERE) {
  return cuda_collective(CUDA_MATCH_ANY, mask, cuda_pack(v), 0, 32, file, line);
}
template <class T> inline unsigned __match_all_sync(unsigned mask, T v, int *pred, HERE) {
  unsigned r = cuda_collective(CUDA_MATCH_ALL, mask, cuda_pack(v), 0, 32, file, line);
  return *pred = r != 0, r;
}
inline int __reduce_add_sync(unsigned m, int v, HERE) { return cuda_collective(CUDA_ADD, m, (unsigned)v, 0, 32, file, line); }
inline unsigned __reduce_add_sync(unsigned m, unsigned v, HERE) { return cuda_collective(CUDA_ADD, m, v, 0, 32, file, line); }
inline int __reduce_min_sync(unsigned m, int v, HERE) { return cuda_collective(CUDA_MIN_S, m, (unsigned)v, 0, 32, file, line); }
inline int __reduce_max_sync(unsigned m, int v, HERE) { return cuda_collective(CUDA_MAX_S, m, (unsigned)v, 0, 32, file, line); }
inline unsigned __reduce_min_sync(unsigned m, unsigned v, HERE) { return cuda_collective(CUDA_MIN_U, m, v, 0, 32, file, line); }
inline unsigned __reduce_max_sync(unsigned m, unsigned v, HERE) { return cuda_collective(CUDA_MAX_U, m, v, 0, 32, file, line); }
inline unsigned __reduce_and_sync(unsigned m, unsigned v, HERE) { return cuda_collective(CUDA_AND, m, v, 0, 32, file, line); }
inline unsigned __reduce_or_sync(unsigned m, unsigned v, HERE) { return cuda_collective(CUDA_OR, m, v, 0, 32, file, line); }
inline unsigned __reduce_xor_sync(unsigned m, unsigned v, HERE) { return cuda_collective(CUDA_REDUCE_XOR, m, v, 0, 32, file, line); }

// ---- atomics: one read-modify-write loop around a compare-and-swap -------------------------------------------------
template <class T, class F> inline T cuda_atomic(T *p, F f) {
  cuda_atomic_enter((void *)p, sizeof(T));
  uint64_t seen = cuda_peek((void *)p, sizeof(T));
  for (;;) {
    uint64_t found = cuda_compare_and_swap((void *)p, sizeof(T), seen, cuda_pack<T>(f(cuda_unpack<T>(seen))));
    if (found == seen) return cuda_unpack<T>(seen);
    seen = found;
  }
}
template <class T> struct cuda_same { typedef T type; };
template <class T> using cuda_arg = typename cuda_same<T>::type;  // so that atomicAdd(float *, 1) finds T from the pointer
template <class T> inline T atomicAdd(T *p, cuda_arg<T> v) { return cuda_atomic(p, [=](T o) { return (T)(o + v); }); }
template <class T> inline T atomicSub(T *p, cuda_arg<T> v) { return cuda_atomic(p, [=](T o) { return (T)(o - v); }); }
template <class T> inline T atomicMin(T *p, cuda_arg<T> v) { return cuda_atomic(p, [=](T o) { return v < o ? v : o; }); }
template <class T> inline T atomicMax(T *p, cuda_arg<T> v) { return cuda_atomic(p, [=](T o) { return o < v ? v : o; }); }
template <class T> inline T atomicAnd(T *p, cuda_arg<T> v) { return cuda_atomic(p, [=](T o) { return o & v; }); }
template <class T> inline T atomicOr(T *p, cuda_arg<T> v) { return cuda_atomic(p, [=](T o) { return o | v; }); }
template <class T> inline T atomicXor(T *p, cuda_arg<T> v) { return cuda_atomic(p, [=](T o) { return o ^ v; }); }
template <class T> inline T atomicExch(T *p, cuda_arg<T> v) { return cuda_atomic(p, [=](T) { return v; }); }
template <class T> inline T atomicCAS(T *p, cuda_arg<T> c, cuda_arg<T> v) {
  return cuda_atomic(p, [=](T o) { return o == c ? v : o; });
}
inline unsigned atomicInc(unsigned *p, unsigned v) { return cuda_atomic(p, [=](unsigned o) { return o >= v ? 0u : o + 1; }); }
inline unsigned atomicDec(unsigned *p, unsigned v) { return cuda_atomic(p, [=](unsigned o) { return o == 0 || o > v ? v : o - 1; }); }

// ---- loads and stores with a cache hint ---------------------------------------------------------------------------
#define CUDA_LOAD(name) template <class T> inline T name(const T *p) { return *p; }
#define CUDA_STORE(name) template <class T> inline void name(T *p, cuda_arg<T> v) { *p = v; }
CUDA_LOAD(__ldg) CUDA_LOAD(__ldca) CUDA_LOAD(__ldcg) CUDA_LOAD(__ldcs) CUDA_LOAD(__ldlu) CUDA_LOAD(__ldcv)
CUDA_STORE(__stwb) CUDA_STORE(__stcg) CUDA_STORE(__stcs) CUDA_STORE(__stwt)

// ---- arithmetic ---------------------------------------------------------------------------------------------------
enum { CUDA_COUNT_EXP, CUDA_COUNT_LOG };
#ifdef CPU_DEVICE_CHECKED
#define CUDA_COUNTED(what, value) (cuda_count(what), value)
#else
#define CUDA_COUNTED(what, value) (value)
#endif
#define CUDA_FUNCTION(what, name)                                                                   \
  inline float cuda_##name(float v) { return CUDA_COUNTED(what, ::name##f(v)); }                    \
  inline double cuda_##name(double v) { return CUDA_COUNTED(what, ::name(v)); }                     \
  template <class I> inline double cuda_##name(I v) { return cuda_##name((double)v); }              \
  inline float cuda_##name##f(float v) { return cuda_##name(v); }
CUDA_FUNCTION(CUDA_COUNT_EXP, exp) CUDA_FUNCTION(CUDA_COUNT_EXP, exp2) CUDA_FUNCTION(CUDA_COUNT_EXP, expm1)
CUDA_FUNCTION(CUDA_COUNT_LOG, log) CUDA_FUNCTION(CUDA_COUNT_LOG, log2) CUDA_FUNCTION(CUDA_COUNT_LOG, log10)
CUDA_FUNCTION(CUDA_COUNT_LOG, log1p)
#define exp cuda_exp
#define expf cuda_expf
#define exp2 cuda_exp2
#define exp2f cuda_exp2f
#define expm1 cuda_expm1
#define expm1f cuda_expm1f
#define log cuda_log
#define logf cuda_logf
#define log2 cuda_log2
#define log2f cuda_log2f
#define log10 cuda_log10
#define log10f cuda_log10f
#define log1p cuda_log1p
#define log1pf cuda_log1pf
inline float __expf(float v) { return expf(v); }
inline float __exp10f(float v) { return exp2f(v * 3.3219280948873623f); }
inline float exp10f(float v) { return exp2f(v * 3.3219280948873623f); }
inline float __logf(float v) { return logf(v); }
inline float __log2f(float v) { return log2f(v); }
inline float __log10f(float v) { return log10f(v); }
inline float __powf(float a, float b) { return powf(a, b); }
inline float __sinf(float v) { return sinf(v); }
inline float __cosf(float v) { return cosf(v); }
inline float __tanhf(float v) { return tanhf(v); }
inline float cuda_fmaxf(float a, float b) { return a > b || b != b ? a : b; }  // drops NaN, as the GPU's does
inline float cuda_fminf(float a, float b) { return a < b || b != b ? a : b; }
#define fmaxf cuda_fmaxf
#define fminf cuda_fminf
#define CUDA_MINMAX(T)                                                            \
  inline T max(T a, T b) { return a > b ? a : b; }                                \
  inline T min(T a, T b) { return a < b ? a : b; }
CUDA_MINMAX(int) CUDA_MINMAX(unsigned) CUDA_MINMAX(long) CUDA_MINMAX(unsigned long) CUDA_MINMAX(long long)
CUDA_MINMAX(unsigned long long)
inline float max(float a, float b) { return fmaxf(a, b); }
inline float min(float a, float b) { return fminf(a, b); }
inline double max(double a, double b) { return fmax(a, b); }
inline double min(double a, double b) { return fmin(a, b); }
inline float rsqrtf(float v) { return 1.0f / sqrtf(v); }
inline double rsqrt(double v) { return 1.0 / sqrt(v); }
inline float __fdividef(float a, float b) { return a / b; }
inline float fdividef(float a, float b) { return a / b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __frcp_rn(float v) { return 1.0f / v; }
inline float __fsqrt_rn(float v) { return sqrtf(v); }
inline float __frsqrt_rn(float v) { return 1.0f / sqrtf(v); }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
inline float __saturatef(float v) { return fminf(fmaxf(v, 0.0f), 1.0f); }
inline int __float2int_rn(float v) { return (int)rintf(v); }
inline int __float2int_rz(float v) { return (int)v; }
inline int __float2int_rd(float v) { return (int)floorf(v); }
inline int __float2int_ru(float v) { return (int)ceilf(v); }
inline float __int2float_rn(int v) { return (float)v; }
inline unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)(((uint64_t)a * b) >> 32); }
inline int __popc(unsigned v) { return __builtin_popcount(v); }
inline int __popcll(unsigned long long v) { return __builtin_popcountll(v); }
inline int __clz(int v) { return v ? __builtin_clz((unsigned)v) : 32; }
inline int __clzll(long long v) { return v ? __builtin_clzll((unsigned long long)v) : 64; }
inline int __ffs(int v) { return __builtin_ffs(v); }
inline int __ffsll(long long v) { return __builtin_ffsll(v); }
inline unsigned __brev(unsigned v) {
  unsigned r = 0;
  for (int i = 0; i < 32; ++i) r |= (v >> i & 1u) << (31 - i);
  return r;
}
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned s) {
  uint64_t both = (uint64_t)b << 32 | a;
  unsigned r = 0;
  for (int i = 0; i < 4; ++i) r |= (unsigned)((both >> (8 * (s >> 4 * i & 7))) & 0xff) << (8 * i);
  return r;
}
inline unsigned __funnelshift_l(unsigned lo, unsigned hi, unsigned s) { return (unsigned)((((uint64_t)hi << 32 | lo) << (s & 31)) >> 32); }
inline unsigned __funnelshift_r(unsigned lo, unsigned hi, unsigned s) { return (unsigned)(((uint64_t)hi << 32 | lo) >> (s & 31)); }
inline void __nanosleep(unsigned) {}

// ---- calling a kernel with CUDA's array of argument addresses ------------------------------------------------------
template <class T> struct cuda_kind { static constexpr char value = 's'; };  // struct by value
template <class T> struct cuda_kind<T *> { static constexpr char value = 'p'; };
#define CUDA_KIND(T, c) template <> struct cuda_kind<T> { static constexpr char value = c; };
CUDA_KIND(bool, 'b') CUDA_KIND(char, 'i') CUDA_KIND(signed char, 'i') CUDA_KIND(short, 'i') CUDA_KIND(int, 'i')
CUDA_KIND(long, 'i') CUDA_KIND(long long, 'i') CUDA_KIND(unsigned char, 'u') CUDA_KIND(unsigned short, 'u')
CUDA_KIND(unsigned, 'u') CUDA_KIND(unsigned long, 'u') CUDA_KIND(unsigned long long, 'u') CUDA_KIND(float, 'f')
CUDA_KIND(double, 'f')
template <class T> struct cuda_plain { typedef T type; };
template <class T> struct cuda_plain<const T> { typedef T type; };
struct cuda_parameter { char kind; int bytes; };
template <int... I> struct cuda_indices {};
template <int N, int... I> struct cuda_range : cuda_range<N - 1, N - 1, I...> {};
template <int... I> struct cuda_range<0, I...> { typedef cuda_indices<I...> type; };
template <class... A, int... I> inline void cuda_call_with(void (*kernel)(A...), void **arguments, cuda_indices<I...>) {
  kernel(*(typename cuda_plain<A>::type *)arguments[I]...);
}
template <class... A> inline void cuda_call(void (*kernel)(A...), void **arguments) {
  cuda_call_with(kernel, arguments, typename cuda_range<sizeof...(A)>::type());
}
template <class... A> inline const cuda_parameter *cuda_describe(void (*)(A...)) {
  static const cuda_parameter table[] = {{cuda_kind<typename cuda_plain<A>::type>::value, (int)sizeof(A)}..., {0, 0}};
  return table;
}
#define CUDA_ENTRY(n, ...)                                                                                     \
  extern "C" __attribute__((visibility("default"))) void cuda_entry_##n(void **a) { cuda_call(__VA_ARGS__, a); } \
  extern "C" __attribute__((visibility("default"))) const cuda_parameter *cuda_describe_##n() { return cuda_describe(__VA_ARGS__); }

#define asm _Pragma("GCC error \"inline PTX has no meaning on a CPU\"") __asm__
