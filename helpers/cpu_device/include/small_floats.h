// half and bfloat16 in plain C++: a 16-bit pattern that is turned into float, computed with, and rounded to nearest even.
//
// float has more than twice the digits of either, so +, -, *, / and sqrt rounded first to float and then to 16 bits are
// right to the last bit; a fused multiply-add and numbers given as double take the detour of "rounding to odd".
#pragma once

inline float cuda_odd_float(double v) {  // v as a float whose last bit says whether anything was cut off
  float f = (float)v;
  if ((double)f == v || v != v || cuda_bits<unsigned>(f) & 1) return f;
  bool away = fabs((double)f) > fabs(v);  // the neighbours of an even pattern are odd
  return fabsf(f) > std::numeric_limits<float>::max() ? copysignf(std::numeric_limits<float>::max(), f)
                                                      : cuda_bits<float>(cuda_bits<unsigned>(f) + (away ? -1 : 1));
}

// EXPONENT bits of exponent: 5 for half, 8 for bfloat16.
template <int EXPONENT> struct cuda_small_format;
template <> struct cuda_small_format<5> {
  static float widen(unsigned short h) {
    unsigned bits = (h & 0x7fffu) << 13, sign = (h & 0x8000u) << 16;
    float magnitude = (h & 0x7c00) == 0x7c00 ? cuda_bits<float>(bits | 0x7f800000u) : cuda_bits<float>(bits) * 0x1p112f;
    return cuda_bits<float>(cuda_bits<unsigned>(magnitude) | sign);
  }
  static unsigned short round(float f) {
    unsigned bits = cuda_bits<unsigned>(f), sign = bits >> 16 & 0x8000;
    bits &= 0x7fffffff;
    if (bits > 0x7f800000) return 0x7fff;                  // NaN, as the GPU writes it
    if (bits >= 0x47800000) return sign | 0x7c00;          // 65536 and more
    if (bits < 0x38800000)                                 // subnormal: adding 1/2 rounds at the right place
      return sign | (unsigned short)(cuda_bits<unsigned>(cuda_bits<float>(bits) + 0.5f) - 0x3f000000);
    return sign | (unsigned short)((bits + 0xfff + (bits >> 13 & 1) - 0x38000000) >> 13);
  }
};
template <> struct cuda_small_format<8> {
  static float widen(unsigned short h) { return cuda_bits<float>((unsigned)h << 16); }
  static unsigned short round(float f) {
    unsigned bits = cuda_bits<unsigned>(f);
    if ((bits & 0x7fffffff) > 0x7f800000) return 0x7fff;
    return (unsigned short)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
  }
};

template <int EXPONENT> struct alignas(2) cuda_small {
  typedef cuda_small_format<EXPONENT> Format;
  unsigned short __x;
  cuda_small() = default;
  cuda_small(float v) : __x(Format::round(v)) {}
  cuda_small(double v) : __x(Format::round(cuda_odd_float(v))) {}
  cuda_small(int v) : cuda_small((double)v) {}
  cuda_small(unsigned v) : cuda_small((double)v) {}
  cuda_small(short v) : cuda_small((float)v) {}
  cuda_small(unsigned short v) : cuda_small((float)v) {}
  cuda_small(cuda_ll v) : cuda_small((double)v) {}
  cuda_small(cuda_ull v) : cuda_small((double)v) {}
  operator float() const { return Format::widen(__x); }
  explicit operator bool() const { return __x & 0x7fff; }
  static cuda_small from_bits(unsigned short bits) {
    cuda_small h;
    h.__x = bits;
    return h;
  }
  bool is_nan() const { float f = *this; return f != f; }

  // Operators and intrinsics are friends, found through their arguments: with the overloads, and the ambiguities, of CUDA.
  typedef cuda_small H;
#define CUDA_SMALL_OPERATOR(op, name)                                                                                 \
  friend H operator op(H a, H b) { return H((float)a op (float)b); }                                                  \
  friend H &operator op##=(H &a, H b) { return a = a op b; }                                                          \
  friend H name(H a, H b) { return a op b; }                                                                          \
  friend H name##_rn(H a, H b) { return a op b; }                                                                     \
  friend H name##_sat(H a, H b) { return saturate(a op b); }
  CUDA_SMALL_OPERATOR(+, __hadd) CUDA_SMALL_OPERATOR(-, __hsub) CUDA_SMALL_OPERATOR(*, __hmul) CUDA_SMALL_OPERATOR(/, __hdiv)
#define CUDA_SMALL_COMPARE(op, name)                                                                                  \
  friend bool operator op(H a, H b) { return (float)a op (float)b; }                                                  \
  friend bool __h##name(H a, H b) { return (float)a op (float)b; }                                                    \
  friend bool __h##name##u(H a, H b) { return a.is_nan() || b.is_nan() || (float)a op (float)b; }
  CUDA_SMALL_COMPARE(==, eq) CUDA_SMALL_COMPARE(<, lt) CUDA_SMALL_COMPARE(<=, le) CUDA_SMALL_COMPARE(>, gt) CUDA_SMALL_COMPARE(>=, ge)
  friend bool operator!=(H a, H b) { return (float)a != (float)b; }
  friend bool __hne(H a, H b) { return !a.is_nan() && !b.is_nan() && (float)a != (float)b; }
  friend bool __hneu(H a, H b) { return (float)a != (float)b; }
  friend bool __hisnan(H a) { return a.is_nan(); }
  friend int __hisinf(H a) { return (a.__x & 0x7fff) == (cuda_small(1e30f * 1e30f).__x) ? ((a.__x >> 15) ? -1 : 1) : 0; }
  friend H operator-(H a) { return from_bits(a.__x ^ 0x8000); }
  friend H operator+(H a) { return a; }
  friend H &operator++(H &a) { return a = a + H(1.0f); }
  friend H &operator--(H &a) { return a = a - H(1.0f); }
  friend H operator++(H &a, int) { H old = a; ++a; return old; }
  friend H operator--(H &a, int) { H old = a; --a; return old; }
  friend bool operator!(H a) { return !(a.__x & 0x7fff); }
  friend H __hneg(H a) { return -a; }
  friend H __habs(H a) { return from_bits(a.__x & 0x7fff); }
  static H saturate(H a) { return a.is_nan() || (float)a < 0 ? H(0.0f) : (float)a > 1 ? H(1.0f) : a; }
  friend H __hfma(H a, H b, H c) {  // one rounding: product and sum in double, what the sum cut off put into its last bit
    double p = (double)(float)a * (float)b, q = (float)c, s = p + q, t = s - p, lost = (p - (s - t)) + (q - t);
    if (lost != 0 && lost == lost && !(cuda_bits<cuda_ull>(s) & 1)) s = cuda_bits<double>(cuda_bits<cuda_ull>(s) + ((lost > 0) == (s > 0) ? 1 : -1));
    return H(s);
  }
  friend H __hfma_sat(H a, H b, H c) { return saturate(__hfma(a, b, c)); }
  friend H __hfma_relu(H a, H b, H c) { H r = __hfma(a, b, c); return r.is_nan() || (float)r > 0 ? r : H(0.0f); }
  friend H __hmax(H a, H b) { return a.is_nan() ? b.is_nan() ? from_bits(0x7fff) : b : b.is_nan() || greater(a, b) ? a : b; }
  friend H __hmin(H a, H b) { return a.is_nan() ? b.is_nan() ? from_bits(0x7fff) : b : b.is_nan() || greater(b, a) ? a : b; }
  friend H __hmax_nan(H a, H b) { return a.is_nan() || b.is_nan() ? from_bits(0x7fff) : __hmax(a, b); }
  friend H __hmin_nan(H a, H b) { return a.is_nan() || b.is_nan() ? from_bits(0x7fff) : __hmin(a, b); }
  static bool greater(H a, H b) { return (float)a > (float)b || ((float)a == (float)b && a.__x < b.__x); }  // +0 above -0
#define CUDA_SMALL_FUNCTION(name, ...) friend H name(H a) { float v = a; return H(__VA_ARGS__); }
  CUDA_SMALL_FUNCTION(hexp, expf(v)) CUDA_SMALL_FUNCTION(hexp2, exp2f(v)) CUDA_SMALL_FUNCTION(hexp10, exp10f(v))
  CUDA_SMALL_FUNCTION(hlog, logf(v)) CUDA_SMALL_FUNCTION(hlog2, log2f(v)) CUDA_SMALL_FUNCTION(hlog10, log10f(v))
  CUDA_SMALL_FUNCTION(hsqrt, sqrtf(v)) CUDA_SMALL_FUNCTION(hrsqrt, 1.0f / sqrtf(v)) CUDA_SMALL_FUNCTION(hrcp, 1.0f / v)
  CUDA_SMALL_FUNCTION(hsin, sinf(v)) CUDA_SMALL_FUNCTION(hcos, cosf(v)) CUDA_SMALL_FUNCTION(htanh, tanhf(v))
  CUDA_SMALL_FUNCTION(hfloor, floorf(v)) CUDA_SMALL_FUNCTION(hceil, ceilf(v)) CUDA_SMALL_FUNCTION(hrint, rintf(v))
  CUDA_SMALL_FUNCTION(htrunc, truncf(v))
};

inline unsigned cuda_mask2(bool low, bool high) { return (low ? 0xffff : 0) | (high ? 0xffff0000 : 0); }

// Two of them, moved as one 4-byte access.
template <int EXPONENT> struct alignas(4) cuda_small2 {
  typedef cuda_small<EXPONENT> H;
  typedef cuda_whole4 Whole __attribute__((may_alias));
  H x, y;
  cuda_small2() = default;
  cuda_small2(H x, H y) : x(x), y(y) {}
  cuda_small2(const cuda_small2 &o) { *(Whole *)this = *(const Whole *)&o; }
  cuda_small2(const volatile cuda_small2 &o) { *(Whole *)this = *(const volatile Whole *)&o; }
  cuda_small2 &operator=(const cuda_small2 &o) { *(Whole *)this = *(const Whole *)&o; return *this; }

  typedef cuda_small2 H2;
#define CUDA_SMALL2_OPERATOR(op, name, name2)                                                                         \
  friend H2 operator op(H2 a, H2 b) { return H2(a.x op b.x, a.y op b.y); }                                            \
  friend H2 &operator op##=(H2 &a, H2 b) { return a = a op b; }                                                       \
  friend H2 name2(H2 a, H2 b) { return a op b; }                                                                      \
  friend H2 name2##_rn(H2 a, H2 b) { return a op b; }                                                                 \
  friend H2 name2##_sat(H2 a, H2 b) { return H2(name##_sat(a.x, b.x), name##_sat(a.y, b.y)); }
  CUDA_SMALL2_OPERATOR(+, __hadd, __hadd2) CUDA_SMALL2_OPERATOR(-, __hsub, __hsub2) CUDA_SMALL2_OPERATOR(*, __hmul, __hmul2)
  CUDA_SMALL2_OPERATOR(/, __hdiv, __h2div)
#define CUDA_SMALL2_COMPARE(name)                                                                                     \
  friend H2 __h##name##2(H2 a, H2 b) { return H2(H(__h##name(a.x, b.x) ? 1.0f : 0.0f), H(__h##name(a.y, b.y) ? 1.0f : 0.0f)); } \
  friend bool __hb##name##2(H2 a, H2 b) { return __h##name(a.x, b.x) && __h##name(a.y, b.y); }                        \
  friend unsigned __h##name##2_mask(H2 a, H2 b) { return cuda_mask2(__h##name(a.x, b.x), __h##name(a.y, b.y)); }       \
  friend unsigned __h##name##u2_mask(H2 a, H2 b) { return cuda_mask2(__h##name##u(a.x, b.x), __h##name##u(a.y, b.y)); }
  CUDA_SMALL2_COMPARE(eq) CUDA_SMALL2_COMPARE(ne) CUDA_SMALL2_COMPARE(lt) CUDA_SMALL2_COMPARE(le) CUDA_SMALL2_COMPARE(gt)
  CUDA_SMALL2_COMPARE(ge)
  friend bool operator==(H2 a, H2 b) { return a.x == b.x && a.y == b.y; }
  friend bool operator!=(H2 a, H2 b) { return a.x != b.x && a.y != b.y; }
  friend H2 operator-(H2 a) { return H2(-a.x, -a.y); }
  friend H2 __hisnan2(H2 a) { return H2(H(a.x.is_nan() ? 1.0f : 0.0f), H(a.y.is_nan() ? 1.0f : 0.0f)); }
#define CUDA_SMALL2_EACH1(name2, name) friend H2 name2(H2 a) { return H2(name(a.x), name(a.y)); }
#define CUDA_SMALL2_EACH2(name2, name) friend H2 name2(H2 a, H2 b) { return H2(name(a.x, b.x), name(a.y, b.y)); }
#define CUDA_SMALL2_EACH3(name2, name) friend H2 name2(H2 a, H2 b, H2 c) { return H2(name(a.x, b.x, c.x), name(a.y, b.y, c.y)); }
  CUDA_SMALL2_EACH1(__hneg2, __hneg) CUDA_SMALL2_EACH1(__habs2, __habs) CUDA_SMALL2_EACH1(h2exp, hexp) CUDA_SMALL2_EACH1(h2exp2, hexp2)
  CUDA_SMALL2_EACH1(h2log, hlog) CUDA_SMALL2_EACH1(h2log2, hlog2) CUDA_SMALL2_EACH1(h2sqrt, hsqrt) CUDA_SMALL2_EACH1(h2rsqrt, hrsqrt)
  CUDA_SMALL2_EACH1(h2rcp, hrcp) CUDA_SMALL2_EACH1(h2floor, hfloor) CUDA_SMALL2_EACH1(h2ceil, hceil) CUDA_SMALL2_EACH1(h2rint, hrint)
  CUDA_SMALL2_EACH1(h2sin, hsin) CUDA_SMALL2_EACH1(h2cos, hcos) CUDA_SMALL2_EACH1(h2tanh, htanh) CUDA_SMALL2_EACH1(h2trunc, htrunc)
  CUDA_SMALL2_EACH2(__hmax2, __hmax) CUDA_SMALL2_EACH2(__hmin2, __hmin) CUDA_SMALL2_EACH2(__hmax2_nan, __hmax_nan)
  CUDA_SMALL2_EACH2(__hmin2_nan, __hmin_nan) CUDA_SMALL2_EACH3(__hfma2, __hfma) CUDA_SMALL2_EACH3(__hfma2_sat, __hfma_sat)
  CUDA_SMALL2_EACH3(__hfma2_relu, __hfma_relu)
};
template <int E> struct cuda_is_number<cuda_small<E>> { static constexpr bool value = true; };
template <int E> struct cuda_is_number<cuda_small2<E>> { static constexpr bool value = true; };
template <int E> struct cuda_is_small_float<cuda_small<E>> { static constexpr bool value = true; };
template <int E> struct cuda_is_small_float<cuda_small2<E>> { static constexpr bool value = true; };

// The number on the side of `v` that the rounding mode asks for: 'z' towards zero, 'd' down, 'u' up.
template <int E> inline cuda_small<E> cuda_small_directed(float v, char mode) {
  cuda_small<E> h(v);
  float r = h;
  bool negative = h.__x >> 15;
  if (r > v && (mode == 'd' || (mode == 'z' && !negative))) h.__x += negative ? 1 : -1;
  if (r < v && (mode == 'u' || (mode == 'z' && negative))) h.__x += negative ? -1 : 1;
  return h;
}

// Conversions, whose names tell the types apart: h is half or bfloat16, and so on.
#define CUDA_SMALL_CONVERSIONS(H, H2, E, h)                                                                           \
  inline H __float2##h(float v) { return H(v); }                                                                      \
  inline H __float2##h##_rn(float v) { return H(v); }                                                                 \
  inline H __float2##h##_rz(float v) { return cuda_small_directed<E>(v, 'z'); }                                       \
  inline H __float2##h##_rd(float v) { return cuda_small_directed<E>(v, 'd'); }                                       \
  inline H __float2##h##_ru(float v) { return cuda_small_directed<E>(v, 'u'); }                                       \
  inline H __double2##h(double v) { return H(v); }                                                                    \
  inline float __##h##2float(H v) { return v; }                                                                       \
  inline unsigned short __##h##_as_ushort(H v) { return v.__x; }                                                      \
  inline short __##h##_as_short(H v) { return (short)v.__x; }                                                         \
  inline H __ushort_as_##h(unsigned short v) { return H::from_bits(v); }                                              \
  inline H __short_as_##h(short v) { return H::from_bits((unsigned short)v); }                                        \
  inline float __low2float(H2 v) { return v.x; }                                                                      \
  inline float __high2float(H2 v) { return v.y; }                                                                     \
  inline H __low2##h(H2 v) { return v.x; }                                                                            \
  inline H __high2##h(H2 v) { return v.y; }                                                                           \
  inline H2 __low2##h##2(H2 v) { return H2(v.x, v.x); }                                                               \
  inline H2 __high2##h##2(H2 v) { return H2(v.y, v.y); }                                                              \
  inline H2 __lows2##h##2(H2 a, H2 b) { return H2(a.x, b.x); }                                                        \
  inline H2 __highs2##h##2(H2 a, H2 b) { return H2(a.y, b.y); }                                                       \
  inline H2 __lowhigh2highlow(H2 v) { return H2(v.y, v.x); }                                                          \
  inline H2 __halves2##h##2(H a, H b) { return H2(a, b); }                                                            \
  inline H2 __##h##2##h##2(H v) { return H2(v, v); }                                                                  \
  inline H2 __float2##h##2_rn(float v) { return H2(H(v), H(v)); }                                                     \
  inline H2 __floats2##h##2_rn(float a, float b) { return H2(H(a), H(b)); }                                           \
  inline H2 __float22##h##2_rn(float2 v) { return H2(H(v.x), H(v.y)); }                                               \
  inline float2 __##h##22float2(H2 v) { return float2(v.x, v.y); }                                                    \
  CUDA_SMALL_INT(H, h, int, int) CUDA_SMALL_INT(H, h, unsigned, uint) CUDA_SMALL_INT(H, h, short, short)              \
  CUDA_SMALL_INT(H, h, unsigned short, ushort) CUDA_SMALL_INT(H, h, cuda_ll, ll) CUDA_SMALL_INT(H, h, cuda_ull, ull)
#define CUDA_SMALL_INT(H, h, I, i)                                                                                    \
  inline I __##h##2##i##_rn(H v) { return cuda_to_int<I>(rint((double)(float)v)); }                                   \
  inline I __##h##2##i##_rz(H v) { return cuda_to_int<I>(trunc((double)(float)v)); }                                  \
  inline I __##h##2##i##_rd(H v) { return cuda_to_int<I>(floor((double)(float)v)); }                                  \
  inline I __##h##2##i##_ru(H v) { return cuda_to_int<I>(ceil((double)(float)v)); }                                   \
  inline H __##i##2##h##_rn(I v) { return H((double)v); }                                                             \
  inline H __##i##2##h(I v) { return H((double)v); }
