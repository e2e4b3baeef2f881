// SPDX-License-Identifier: Apache-2.0
//
// Vectors of one instruction set, for sources that are compiled once an instruction set. Plain
// arithmetic and comparisons are the compiler's vector extensions; here stands what they can't say.
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

TFX_INLINE Floats Load(const float* from) {
  Floats x;
  memcpy(&x, from, sizeof(x));
  return x;
}

TFX_INLINE Doubles Load(const double* from) {
  Doubles x;
  memcpy(&x, from, sizeof(x));
  return x;
}

TFX_INLINE Ints Load(const int32_t* from) {
  Ints x;
  memcpy(&x, from, sizeof(x));
  return x;
}

template <typename Vector>
TFX_INLINE void Store(void* to, Vector x) {
  memcpy(to, &x, sizeof(x));
}

TFX_INLINE Floats Broadcast(float x) { return x - Floats{}; }  // x + 0 would cost an addition
TFX_INLINE Doubles Broadcast(double x) { return x - Doubles{}; }

#if defined(__AVX512F__)
// a * b + c, rounded once where the instruction set can.
TFX_INLINE Floats MulAdd(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
TFX_INLINE Doubles MulAdd(Doubles a, Doubles b, Doubles c) { return _mm512_fmadd_pd(a, b, c); }
// a > b ? a : b, so b where either is NaN.
TFX_INLINE Floats Max(Floats a, Floats b) { return _mm512_max_ps(a, b); }
// a < b ? a : b, so b where either is NaN.
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

// x * 2^n. Where n < -126 this is 0 or, with AVX-512, denormal. NaN where x is.
// REQUIRES: every n is an integer in [-250, 127].
TFX_INLINE Floats ScaleByPowerOfTwo(Floats x, Floats n) {
#if defined(__AVX512F__)
  return _mm512_scalef_ps(x, n);
#else
  // Adding 1.5 * 2^23 brings n to the low bits; from there it moves to where a float keeps its
  // exponent.
  const Ints exponent = (reinterpret_cast<Ints>(n + 12582912.0f) << 23) + 0x3f800000;
  return x * reinterpret_cast<Floats>(exponent > 0 ? exponent : Ints{});
#endif
}

}  // namespace tfx::core::TFX_ISA

#endif  // TFX_LARGEOUT_CORE_SIMD_H_
