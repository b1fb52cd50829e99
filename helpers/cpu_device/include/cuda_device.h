// The CUDA C++ vocabulary for a host compiler: what nvcc knows without any #include, in plain C++17.
//
// Every kernel of the CPU device is compiled behind this header.  Anything that needs the other threads of the block
// (barriers, shuffles, atomics) is a call into runtime.cpp, which owns the fibers; the rest is ordinary arithmetic.
#pragma once
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <limits>

#define __global__ __attribute__((noinline))  // a frame of its own, so that its lines stay known
#define __device__
#define __host__
#ifdef __APPLE__
#define CUDA_SECTION(name) section("__DATA," name)
#else
#define CUDA_SECTION(name) section(name)
#endif
#define __cuda_variable__ __attribute__((CUDA_SECTION("cuda_global"), used))  // compiler.py marks __device__ variables with it
#define __constant__ static __cuda_variable__
#define __shared__ static __attribute__((CUDA_SECTION("cuda_shared"), aligned(128)))
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __align__(n) __attribute__((aligned(n)))
#define __launch_bounds__(...)
#define __grid_constant__
#define __cluster_dims__(...) _Pragma("GCC error \"clusters of blocks exist on a GPU only: the CPU device runs one block at a time\"")
#define __managed__ static_assert(false, "managed memory is not part of the CPU device");
#define __CUDA_ARCH__ 800
#define __CUDACC__ 1
#define __CUDACC_RTC__ 1
#define __CPU_DEVICE__ 1
#define warpSize 32
#define HERE const char *file = __builtin_FILE(), int line = __builtin_LINE()  // where in the .cu a call stands

struct uint3 { unsigned x, y, z; };
struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
  constexpr dim3(uint3 v) : x(v.x), y(v.y), z(v.z) {}
  constexpr operator uint3() const { return {x, y, z}; }
};

#ifdef __clang__
#define CUDA_CONVERGENT __attribute__((convergent, nomerge))  // not to be moved into or out of a branch
#else
#define CUDA_CONVERGENT
#endif

extern "C" {  // runtime.cpp
uint3 cuda_thread_idx() __attribute__((const));
uint3 cuda_block_idx() __attribute__((const));
uint3 cuda_block_dim() __attribute__((const));
uint3 cuda_grid_dim() __attribute__((const));
extern char cuda_dynamic_memory[];  // `extern __shared__ T s[]` becomes a pointer to it, see compiler.py
unsigned cuda_dynamic_bytes();
CUDA_CONVERGENT int cuda_barrier(int kind, int predicate, const char *file, int line);
CUDA_CONVERGENT uint64_t cuda_collective(int kind, unsigned mask, uint64_t value, int argument, int width, const char *file, int line);
void cuda_atomic_enter(void *p, int bytes);
uint64_t cuda_peek(void *p, int bytes);
uint64_t cuda_compare_and_swap(void *p, int bytes, uint64_t expected, uint64_t desired);
void *cuda_memcpy(void *to, const void *from, size_t n);
void *cuda_memset(void *to, int c, size_t n);
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
#define memcpy cuda_memcpy
#define memmove cuda_memcpy
#define memset cuda_memset
#define printf cuda_printf
#define clock64 cuda_clock
#define clock() ((int)cuda_clock())
#define abort() cuda_trap("abort() was called")
#define __trap() cuda_trap("__trap() was called")
#define assert(condition) ((condition) ? (void)0 : cuda_trap("assertion failed: " #condition))

// ---- vector types: loaded and stored whole, as one access of their full size --------------------------------------
#define CUDA_VECTOR(name, T, alignment, declare, params, init, copy)                                                  \
  struct __attribute__((aligned(alignment))) name {                                                                   \
    T declare;                                                                                                        \
    typedef copy Whole __attribute__((may_alias));                                                                    \
    name() = default;                                                                                                 \
    constexpr name params : init {}                                                                                   \
    name(const name &o) { *(Whole *)this = *(const Whole *)&o; }                                                      \
    name &operator=(const name &o) { *(Whole *)this = *(const Whole *)&o; return *this; }                             \
    name(const volatile name &o) { *(Whole *)this = *(const volatile Whole *)&o; }                                    \
  };
#define CUDA_COMMA ,
#define CUDA_VECTOR2(name, T, W)                                                                                      \
  CUDA_VECTOR(name, T, 2 * sizeof(T), x CUDA_COMMA y, (T x, T y), x(x) CUDA_COMMA y(y), W)                            \
  inline name make_##name(T x, T y) { return name(x, y); }
#define CUDA_VECTOR4(name, T, W)                                                                                      \
  CUDA_VECTOR(name, T, 4 * sizeof(T), x CUDA_COMMA y CUDA_COMMA z CUDA_COMMA w, (T x, T y, T z = 0, T w = 0),         \
              x(x) CUDA_COMMA y(y) CUDA_COMMA z(z) CUDA_COMMA w(w), W)                                                \
  inline name make_##name(T x, T y, T z, T w) { return name(x, y, z, w); }
#define CUDA_VECTOR1(name, T) struct name { T x; }; inline name make_##name(T x) { return {x}; }
#define CUDA_VECTOR3(name, T) struct name { T x, y, z; }; inline name make_##name(T x, T y, T z) { return {x, y, z}; }
#define CUDA_WIDE4(name, T)  /* 32 bytes: two accesses */                                                             \
  struct __attribute__((aligned(16))) name { T x, y, z, w; };                                                         \
  inline name make_##name(T x, T y, T z, T w) { return {x, y, z, w}; }
#define CUDA_VECTORS(name, T, W2, W4) CUDA_VECTOR1(name##1, T) CUDA_VECTOR2(name##2, T, W2) CUDA_VECTOR3(name##3, T) CUDA_VECTOR4(name##4, T, W4)
#define CUDA_WIDE_VECTORS(name, T, W) CUDA_VECTOR1(name##1, T) CUDA_VECTOR2(name##2, T, W) CUDA_VECTOR3(name##3, T) CUDA_WIDE4(name##4, T)
// (Vector types of the compiler: it takes a 64-bit integer apart where it thinks that two floats are better.)
typedef char cuda_whole2 __attribute__((vector_size(2)));
typedef short cuda_whole4 __attribute__((vector_size(4)));
typedef int cuda_whole8 __attribute__((vector_size(8)));
typedef int cuda_whole16 __attribute__((vector_size(16)));
CUDA_VECTORS(float, float, cuda_whole8, cuda_whole16) CUDA_VECTORS(int, int, cuda_whole8, cuda_whole16)
CUDA_VECTOR1(uint1, unsigned) CUDA_VECTOR2(uint2, unsigned, cuda_whole8) CUDA_VECTOR4(uint4, unsigned, cuda_whole16)
CUDA_VECTORS(short, short, cuda_whole4, cuda_whole8) CUDA_VECTORS(ushort, unsigned short, cuda_whole4, cuda_whole8)
CUDA_VECTORS(char, signed char, cuda_whole2, cuda_whole4) CUDA_VECTORS(uchar, unsigned char, cuda_whole2, cuda_whole4)
CUDA_WIDE_VECTORS(double, double, cuda_whole16) CUDA_WIDE_VECTORS(long, long, cuda_whole16) CUDA_WIDE_VECTORS(ulong, unsigned long, cuda_whole16)
CUDA_WIDE_VECTORS(longlong, long long, cuda_whole16) CUDA_WIDE_VECTORS(ulonglong, unsigned long long, cuda_whole16)
inline uint3 make_uint3(unsigned x, unsigned y, unsigned z) { return {x, y, z}; }

// ---- bit casts ----------------------------------------------------------------------------------------------------
template <class To, class From> inline To cuda_bits(From v) {
  static_assert(sizeof(To) == sizeof(From), "a bit cast keeps the size");
  To r;
  __builtin_memcpy((void *)&r, (const void *)&v, sizeof r);
  return r;
}
template <class T> inline uint64_t cuda_pack(T v) {
  static_assert(sizeof(T) <= 8, "shuffles and atomics move at most 8 bytes");
  uint64_t r = 0;
  __builtin_memcpy(&r, (const void *)&v, sizeof v);
  return r;
}
template <class T> inline T cuda_unpack(uint64_t bits) {
  T v;
  __builtin_memcpy((void *)&v, &bits, sizeof v);
  return v;
}
inline int __float_as_int(float v) { return cuda_bits<int>(v); }
inline unsigned __float_as_uint(float v) { return cuda_bits<unsigned>(v); }
inline float __int_as_float(int v) { return cuda_bits<float>(v); }
inline float __uint_as_float(unsigned v) { return cuda_bits<float>(v); }
inline long long __double_as_longlong(double v) { return cuda_bits<long long>(v); }
inline double __longlong_as_double(long long v) { return cuda_bits<double>(v); }
inline double __hiloint2double(int hi, int lo) { return cuda_bits<double>((uint64_t)(unsigned)hi << 32 | (unsigned)lo); }
inline int __double2hiint(double v) { return (int)(cuda_bits<uint64_t>(v) >> 32); }
inline int __double2loint(double v) { return (int)cuda_bits<uint64_t>(v); }
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
template <class T> struct cuda_is_number { static constexpr bool value = std::numeric_limits<T>::is_specialized; };
#define CUDA_SHUFFLE(name, kind, T2)                                                                             \
  template <class T> inline T name(unsigned mask, T v, T2 argument, int width = 32, HERE) {                      \
    static_assert(cuda_is_number<T>::value, "shuffles move numbers; move the parts of a struct one by one");     \
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
template <class T, class... Allowed> struct cuda_one_of { static constexpr bool value = false; };
template <class T, class... Rest> struct cuda_one_of<T, T, Rest...> { static constexpr bool value = true; };
template <class T, class First, class... Rest> struct cuda_one_of<T, First, Rest...> : cuda_one_of<T, Rest...> {};
template <class T> struct cuda_is_small_float { static constexpr bool value = false; };  // half and its kin, see small_floats.h
typedef long long cuda_ll;
typedef unsigned long long cuda_ull;
// Each operation exists for the types that a GPU has it for, and with the scopes _block and _system.
#define CUDA_ATOMIC(name, params, args, result, ...)                                                             \
  template <class T> inline T name params {                                                                      \
    static_assert(cuda_one_of<T, __VA_ARGS__>::value || (#name[6] == 'A' && #name[7] == 'd' && cuda_is_small_float<T>::value), \
                  #name " does not exist for this type");                                                        \
    return cuda_atomic(p, [=](T old) -> T { return result; });                                                   \
  }                                                                                                              \
  template <class T> inline T name##_block params { return name args; }                                          \
  template <class T> inline T name##_system params { return name args; }
#define CUDA_ATOMIC1(name, result, ...) CUDA_ATOMIC(name, (T *p, cuda_arg<T> v), (p, v), result, __VA_ARGS__)
CUDA_ATOMIC1(atomicAdd, old + v, int, unsigned, cuda_ull, float, double)
CUDA_ATOMIC1(atomicSub, old - v, int, unsigned)
CUDA_ATOMIC1(atomicMin, v < old ? v : old, int, unsigned, cuda_ll, cuda_ull)
CUDA_ATOMIC1(atomicMax, old < v ? v : old, int, unsigned, cuda_ll, cuda_ull)
CUDA_ATOMIC1(atomicAnd, old & v, int, unsigned, cuda_ll, cuda_ull)
CUDA_ATOMIC1(atomicOr, old | v, int, unsigned, cuda_ll, cuda_ull)
CUDA_ATOMIC1(atomicXor, old ^ v, int, unsigned, cuda_ll, cuda_ull)
CUDA_ATOMIC1(atomicExch, ((void)old, v), int, unsigned, cuda_ull, float)
CUDA_ATOMIC1(atomicInc, old >= v ? 0u : old + 1, unsigned)
CUDA_ATOMIC1(atomicDec, old == 0 || old > v ? v : old - 1, unsigned)
CUDA_ATOMIC(atomicCAS, (T *p, cuda_arg<T> expected, cuda_arg<T> v), (p, expected, v), old == expected ? v : old, int, unsigned, cuda_ull,
            unsigned short)
inline float2 atomicAdd(float2 *p, float2 v) { return cuda_atomic(p, [=](float2 o) { return float2(o.x + v.x, o.y + v.y); }); }

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
#define CUDA_MINMAX(T, A, B)                                                      \
  inline T max(A a, B b) { return (T)a > (T)b ? (T)a : (T)b; }                    \
  inline T min(A a, B b) { return (T)a < (T)b ? (T)a : (T)b; }
#define CUDA_MINMAX_OF(T, U) CUDA_MINMAX(T, T, T) CUDA_MINMAX(U, U, U) CUDA_MINMAX(U, T, U) CUDA_MINMAX(U, U, T)
CUDA_MINMAX_OF(int, unsigned) CUDA_MINMAX_OF(long, unsigned long) CUDA_MINMAX_OF(long long, unsigned long long)
inline float max(float a, float b) { return fmaxf(a, b); }
inline float min(float a, float b) { return fminf(a, b); }
#define CUDA_MINMAX_DOUBLE(A, B)                                                  \
  inline double max(A a, B b) { return fmax((double)a, (double)b); }              \
  inline double min(A a, B b) { return fmin((double)a, (double)b); }
CUDA_MINMAX_DOUBLE(double, double) CUDA_MINMAX_DOUBLE(float, double) CUDA_MINMAX_DOUBLE(double, float)
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
inline double __dadd_rn(double a, double b) { return a + b; }
inline double __dsub_rn(double a, double b) { return a - b; }
inline double __dmul_rn(double a, double b) { return a * b; }
inline double __ddiv_rn(double a, double b) { return a / b; }
inline double __fma_rn(double a, double b, double c) { return fma(a, b, c); }
inline double __dsqrt_rn(double v) { return sqrt(v); }
inline double __drcp_rn(double v) { return 1.0 / v; }
inline float rhypotf(float a, float b) { return 1.0f / hypotf(a, b); }
inline float rcbrtf(float v) { return 1.0f / cbrtf(v); }
inline float normcdff(float v) { return (float)(0.5 * erfc(-v * 0.70710678118654752)); }
inline double normcdf(double v) { return 0.5 * erfc(-v * 0.70710678118654752); }
inline double cuda_in_turn(double v) { return v - 2 * rint(v / 2); }  // sin(pi v) and cos(pi v) repeat after 2
inline float sinpif(float v) { return (float)sin(3.14159265358979324 * cuda_in_turn(v)); }
inline float cospif(float v) { return (float)cos(3.14159265358979324 * cuda_in_turn(v)); }
inline void __sincosf(float v, float *s, float *c) { *s = sinf(v), *c = cosf(v); }
inline int __isnanf(float v) { return v != v; }
inline int __isinff(float v) { return fabsf(v) > std::numeric_limits<float>::max(); }
// Conversions saturate, and NaN becomes 0, as on a GPU (in plain C++ that would be undefined).
template <class I> inline I cuda_to_int(double v) {
  typedef std::numeric_limits<I> L;
  return v != v ? I(0) : v <= (double)L::min() ? L::min() : v >= (double)L::max() ? L::max() : (I)v;
}
#define CUDA_TO_INT(T, t, I, i)                                                   \
  inline I __##t##2##i##_rn(T v) { return cuda_to_int<I>(rint((double)v)); }      \
  inline I __##t##2##i##_rz(T v) { return cuda_to_int<I>(trunc((double)v)); }     \
  inline I __##t##2##i##_rd(T v) { return cuda_to_int<I>(floor((double)v)); }     \
  inline I __##t##2##i##_ru(T v) { return cuda_to_int<I>(ceil((double)v)); }      \
  inline T __##i##2##t##_rn(I v) { return (T)v; }
CUDA_TO_INT(float, float, int, int) CUDA_TO_INT(float, float, unsigned, uint) CUDA_TO_INT(float, float, cuda_ll, ll)
CUDA_TO_INT(float, float, cuda_ull, ull) CUDA_TO_INT(double, double, int, int) CUDA_TO_INT(double, double, unsigned, uint)
CUDA_TO_INT(double, double, cuda_ll, ll) CUDA_TO_INT(double, double, cuda_ull, ull)
inline float __double2float_rn(double v) { return (float)v; }
inline unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)(((uint64_t)a * b) >> 32); }
inline int __mulhi(int a, int b) { return (int)(((int64_t)a * b) >> 32); }
inline cuda_ull __umul64hi(cuda_ull a, cuda_ull b) { return (cuda_ull)(((unsigned __int128)a * b) >> 64); }
inline cuda_ll __mul64hi(cuda_ll a, cuda_ll b) { return (cuda_ll)(((__int128)a * b) >> 64); }
inline int __mul24(int a, int b) { return (a << 8 >> 8) * (b << 8 >> 8); }
inline unsigned __umul24(unsigned a, unsigned b) { return (a & 0xffffff) * (b & 0xffffff); }
inline unsigned __sad(int a, int b, unsigned c) { return (a > b ? (unsigned)a - b : (unsigned)b - a) + c; }
inline unsigned __usad(unsigned a, unsigned b, unsigned c) { return (a > b ? a - b : b - a) + c; }
inline int __hadd(int a, int b) { return (int)(((int64_t)a + b) >> 1); }
inline int __rhadd(int a, int b) { return (int)(((int64_t)a + b + 1) >> 1); }
inline int __dp4a(int a, int b, int c) {
  for (int i = 0; i < 32; i += 8) c += (signed char)(a >> i) * (signed char)(b >> i);
  return c;
}
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
inline cuda_ull __brevll(cuda_ull v) { return (cuda_ull)__brev((unsigned)v) << 32 | __brev((unsigned)(v >> 32)); }
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned s) {
  uint64_t both = (uint64_t)b << 32 | a;
  unsigned r = 0;
  for (int i = 0; i < 4; ++i) r |= (unsigned)((both >> (8 * (s >> 4 * i & 7))) & 0xff) << (8 * i);
  return r;
}
inline unsigned __funnelshift_l(unsigned lo, unsigned hi, unsigned s) { return (unsigned)((((uint64_t)hi << 32 | lo) << (s & 31)) >> 32); }
inline unsigned __funnelshift_r(unsigned lo, unsigned hi, unsigned s) { return (unsigned)(((uint64_t)hi << 32 | lo) >> (s & 31)); }
inline void __nanosleep(unsigned) {}
#ifndef __clang__
#define __builtin_assume(condition) ((void)0)
#endif

// ---- what further headers of CUDA give names to; here, so that no macro of the reader's gets between ----------------
#include "small_floats.h"
#include "groups.h"

// ---- calling a kernel with CUDA's array of argument addresses ------------------------------------------------------
template <class T> struct cuda_kind { static constexpr char value = 's'; };  // struct by value
template <class T> struct cuda_kind<T *> { static constexpr char value = 'p'; };
template <class T> struct cuda_kind<const T *> { static constexpr char value = 'c'; };  // what it points to is only read
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

// ---- what a host compiler knows and NVRTC does not: a kernel that uses it would compile here and fail on a GPU ---------
namespace cuda_host_std { using std::numeric_limits; }
#undef INFINITY
#undef NAN
#undef HUGE_VAL
#undef HUGE_VALF
#undef M_PI
#undef RAND_MAX
#define std std_is_unknown_to_NVRTC
#define int8_t int8_t_is_unknown_to_NVRTC
#define int16_t int16_t_is_unknown_to_NVRTC
#define int32_t int32_t_is_unknown_to_NVRTC
#define int64_t int64_t_is_unknown_to_NVRTC
#define uint8_t uint8_t_is_unknown_to_NVRTC
#define uint16_t uint16_t_is_unknown_to_NVRTC
#define uint32_t uint32_t_is_unknown_to_NVRTC
#define uint64_t uint64_t_is_unknown_to_NVRTC
#define intptr_t intptr_t_is_unknown_to_NVRTC
#define uintptr_t uintptr_t_is_unknown_to_NVRTC
#define uint uint_is_unknown_to_NVRTC
#define ushort ushort_is_unknown_to_NVRTC
#define ulong ulong_is_unknown_to_NVRTC
