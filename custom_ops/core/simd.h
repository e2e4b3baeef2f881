// SPDX-License-Identifier: Apache-2.0
//
// Vectors of one instruction set, for sources that are compiled once per instruction set. Plain
// arithmetic and comparisons are the compiler's vector extensions; other operations are here.
// Everything lives in namespace tfx::core::TFX_ISA and is inlined.

#ifndef TFX_LARGEOUT_CORE_SIMD_H_
#define TFX_LARGEOUT_CORE_SIMD_H_

#include <stdint.h>
#include <string.h>

#ifdef __x86_64__
#include <immintrin.h>
#endif

#define TFX_INLINE static inline __attribute__((always_inline))

namespace tfx::core::TFX_ISA {

#if defined(__AVX512F__)
constexpr int kLanes = 16;
#elif defined(__AVX2__)
constexpr int kLanes = 8;
#else
constexpr int kLanes = 4;
#endif

typedef float Floats __attribute__((vector_size(4 * kLanes)));
typedef double Doubles __attribute__((vector_size(4 * kLanes)));  // half as many
typedef int32_t Ints __attribute__((vector_size(4 * kLanes)));
typedef uint32_t Words __attribute__((vector_size(4 * kLanes)));
typedef uint16_t Halves __attribute__((vector_size(2 * kLanes)));
typedef int8_t Bytes __attribute__((vector_size(kLanes)));

template <typename Vector>
TFX_INLINE Vector LoadBits(const void* from) {
  Vector x;
  memcpy(&x, from, sizeof(x));
  return x;
}

TFX_INLINE Floats Load(const float* from) { return LoadBits<Floats>(from); }
TFX_INLINE Doubles Load(const double* from) { return LoadBits<Doubles>(from); }
TFX_INLINE Ints Load(const int32_t* from) { return LoadBits<Ints>(from); }
TFX_INLINE Words Load(const uint32_t* from) { return LoadBits<Words>(from); }

// Integers, as floats.
TFX_INLINE Floats Load(const int8_t* from) {
#if defined(__AVX512F__)
  return _mm512_cvtepi32_ps(
      _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))));
#elif defined(__AVX2__)
  return _mm256_cvtepi32_ps(
      _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from))));
#else
  return __builtin_convertvector(__builtin_convertvector(LoadBits<Bytes>(from), Ints), Floats);
#endif
}

TFX_INLINE int64_t Min(int64_t x, int64_t y) { return x < y ? x : y; }

template <typename Vector>
TFX_INLINE void Store(void* to, Vector x) {
  memcpy(to, &x, sizeof(x));
}

// The first n of an array; the other elements are 0. Memory after them is not read.
// REQUIRES: 0 <= n <= kLanes.
TFX_INLINE Floats LoadSome(const float* from, int64_t n) {
#if defined(__AVX512F__)
  return _mm512_maskz_loadu_ps(static_cast<__mmask16>((1u << n) - 1), from);
#else
  Floats x = {};
  memcpy(&x, from, n * sizeof(float));
  return x;
#endif
}

// REQUIRES: 0 <= n <= kLanes.
TFX_INLINE void StoreSome(float* to, Floats x, int64_t n) {
#if defined(__AVX512F__)
  _mm512_mask_storeu_ps(to, static_cast<__mmask16>((1u << n) - 1), x);
#else
  memcpy(to, &x, n * sizeof(float));
#endif
}

// bfloat16 numbers: the upper halves of floats.
TFX_INLINE Floats Widen(Halves x) {
  return reinterpret_cast<Floats>(__builtin_convertvector(x, Words) << 16);
}

TFX_INLINE Floats Load(const uint16_t* from) { return Widen(LoadBits<Halves>(from)); }

TFX_INLINE Floats LoadSome(const uint16_t* from, int64_t n) {
  Halves x = {};
  memcpy(&x, from, n * sizeof(uint16_t));
  return Widen(x);
}

// The nearest bfloat16 numbers, ties to even; NaN stays NaN.
TFX_INLINE Halves Narrow(Floats x) {
  const Words bits = reinterpret_cast<Words>(x);
  const Words rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  const Words is_nan = reinterpret_cast<Words>(x != x);
  return __builtin_convertvector((rounded & ~is_nan) | (is_nan & 0x7fc0), Halves);
}

// One of the two bfloat16 numbers around x, chosen by a random number below 2^16 so that the mean
// is x. NaN stays NaN.
TFX_INLINE Halves NarrowAtRandom(Floats x, Words random) {
  const Words is_nan = reinterpret_cast<Words>(x != x);
  const Words rounded = (reinterpret_cast<Words>(x) + random) >> 16;
  return __builtin_convertvector((rounded & ~is_nan) | (is_nan & 0x7fc0), Halves);
}

TFX_INLINE void StoreSome(uint16_t* to, Halves x, int64_t n) {
  memcpy(to, &x, n * sizeof(uint16_t));
}

TFX_INLINE void StoreSome(uint16_t* to, Floats x, int64_t n) { StoreSome(to, Narrow(x), n); }

TFX_INLINE Floats Broadcast(float x) { return x - Floats{}; }  // x + 0 would cost an addition
TFX_INLINE Doubles Broadcast(double x) { return x - Doubles{}; }
TFX_INLINE Words Broadcast(uint32_t x) { return x - Words{}; }

#if defined(__AVX512F__)
// a * b + c, rounded once if the instruction set supports it.
TFX_INLINE Floats MulAdd(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
TFX_INLINE Doubles MulAdd(Doubles a, Doubles b, Doubles c) { return _mm512_fmadd_pd(a, b, c); }
// a > b ? a : b, so b if either is NaN.
TFX_INLINE Floats Max(Floats a, Floats b) { return _mm512_max_ps(a, b); }
// a < b ? a : b, so b if either is NaN.
TFX_INLINE Floats Min(Floats a, Floats b) { return _mm512_min_ps(a, b); }
// Bit i: a[i] > b[i].
TFX_INLINE uint32_t Greater(Floats a, Floats b) { return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ); }
// Bit i: a[i] >= b[i].
TFX_INLINE uint32_t GreaterEqual(Floats a, Floats b) {
  return _mm512_cmp_ps_mask(a, b, _CMP_GE_OQ);
}
#elif defined(__AVX2__)
TFX_INLINE Floats MulAdd(Floats a, Floats b, Floats c) { return _mm256_fmadd_ps(a, b, c); }
TFX_INLINE Doubles MulAdd(Doubles a, Doubles b, Doubles c) { return _mm256_fmadd_pd(a, b, c); }
TFX_INLINE Floats Max(Floats a, Floats b) { return _mm256_max_ps(a, b); }
TFX_INLINE Floats Min(Floats a, Floats b) { return _mm256_min_ps(a, b); }
TFX_INLINE uint32_t Greater(Floats a, Floats b) {
  return _mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_GT_OQ));
}
TFX_INLINE uint32_t GreaterEqual(Floats a, Floats b) {
  return _mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_GE_OQ));
}
#elif defined(__x86_64__)
TFX_INLINE Floats MulAdd(Floats a, Floats b, Floats c) { return a * b + c; }
TFX_INLINE Doubles MulAdd(Doubles a, Doubles b, Doubles c) { return a * b + c; }
TFX_INLINE Floats Max(Floats a, Floats b) { return _mm_max_ps(a, b); }
TFX_INLINE Floats Min(Floats a, Floats b) { return _mm_min_ps(a, b); }
TFX_INLINE uint32_t Greater(Floats a, Floats b) { return _mm_movemask_ps(_mm_cmpgt_ps(a, b)); }
TFX_INLINE uint32_t GreaterEqual(Floats a, Floats b) { return _mm_movemask_ps(_mm_cmpge_ps(a, b)); }
#else
TFX_INLINE Floats MulAdd(Floats a, Floats b, Floats c) { return a * b + c; }
TFX_INLINE Doubles MulAdd(Doubles a, Doubles b, Doubles c) { return a * b + c; }
TFX_INLINE Floats Max(Floats a, Floats b) { return a > b ? a : b; }
TFX_INLINE Floats Min(Floats a, Floats b) { return a < b ? a : b; }
TFX_INLINE uint32_t Bits(Ints mask) {
  uint32_t bits = 0;
  for (int i = 0; i < kLanes; ++i) bits |= static_cast<uint32_t>(mask[i] & 1) << i;
  return bits;
}
TFX_INLINE uint32_t Greater(Floats a, Floats b) { return Bits(a > b); }
TFX_INLINE uint32_t GreaterEqual(Floats a, Floats b) { return Bits(a >= b); }
#endif

TFX_INLINE Floats Sqrt(Floats x) {
#if defined(__AVX512F__)
  return _mm512_sqrt_ps(x);
#elif defined(__AVX2__)
  return _mm256_sqrt_ps(x);
#elif defined(__x86_64__)
  return _mm_sqrt_ps(x);
#else
  for (int i = 0; i < kLanes; ++i) x[i] = __builtin_sqrtf(x[i]);
  return x;
#endif
}

// The sum of all elements.
TFX_INLINE float Sum(Floats x) {
#if defined(__AVX512F__)
  return _mm512_reduce_add_ps(x);
#elif defined(__x86_64__)
#if defined(__AVX2__)
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
#else
  const __m128 four = x;
#endif
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
#else
  float sum = 0.0f;
  for (int i = 0; i < kLanes; ++i) sum += x[i];
  return sum;
#endif
}

// REQUIRES: every element of `mask` is 0 or -1.
TFX_INLINE bool AnyTrue(Ints mask) {
#if defined(__AVX512F__)
  return _mm512_test_epi32_mask(reinterpret_cast<__m512i>(mask), reinterpret_cast<__m512i>(mask)) !=
         0;
#elif defined(__AVX2__)
  return !_mm256_testz_si256(reinterpret_cast<__m256i>(mask), reinterpret_cast<__m256i>(mask));
#elif defined(__x86_64__)
  return _mm_movemask_epi8(reinterpret_cast<__m128i>(mask)) != 0;
#else
  return Bits(mask) != 0;
#endif
}

// x * 2^n. For n < -126 this is 0 or, with AVX-512, denormal. NaN if x is.
// REQUIRES: every n is an integer in [-250, 127].
TFX_INLINE Floats ScaleByPowerOfTwo(Floats x, Floats n) {
#if defined(__AVX512F__)
  return _mm512_scalef_ps(x, n);
#else
  // Adding 1.5 * 2^23 moves n to the low bits; from there it is shifted to the exponent.
  const Ints exponent = (reinterpret_cast<Ints>(n + 12582912.0f) << 23) + 0x3f800000;
  return x * reinterpret_cast<Floats>(exponent > 0 ? exponent : Ints{});
#endif
}

}  // namespace tfx::core::TFX_ISA

#endif  // TFX_LARGEOUT_CORE_SIMD_H_
