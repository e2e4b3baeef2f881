// SPDX-License-Identifier: Apache-2.0
//
// A tile of a product of matrices, so small that its sums stay in registers, for sources compiled
// once per instruction set. Its factors are floats, or bfloat16 numbers that are multiplied exactly
// and summed as floats: in pairs if the processor multiplies pairs, else as floats.
//
// The right factor is in panels of one or two vectors: [depth, lanes]. `depth` counts elements,
// which are floats or pairs; the two numbers of a pair are neighbours along the depth.

#ifndef TFX_LARGEOUT_CORE_PRODUCT_TILE_H_
#define TFX_LARGEOUT_CORE_PRODUCT_TILE_H_

#include "core/simd.h"

namespace tfx::core::TFX_ISA {

#if defined(__AVX512BF16__)
typedef uint32_t Rounded;  // two neighbours of a row, the first in the lower half

// c + the products of both numbers.
TFX_INLINE Floats MulAdd(Words a, Words b, Floats c) {
  return _mm512_dpbf16_ps(c, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b));
}

// The elements of kLanes numbers that are neighbours along the depth, for memory.
TFX_INLINE Halves RoundedElements(Floats x) { return Narrow(x); }

// Elements of numbers of two rows, neighbours along the depth, side by side.
TFX_INLINE Words RoundedElements(Floats first, Floats second) {
  return __builtin_convertvector(Narrow(first), Words) |
         __builtin_convertvector(Narrow(second), Words) << 16;
}
#else
typedef float Rounded;

TFX_INLINE Floats RoundedElements(Floats x) { return Widen(Narrow(x)); }
#endif

template <typename Element>
constexpr int kNumbersOf = 1;
template <>
constexpr int kNumbersOf<uint32_t> = 2;

// Elements of a row of `width` numbers.
template <typename Element>
TFX_INLINE int64_t DepthOf(int64_t width) {
  return (width + kNumbersOf<Element> - 1) / kNumbersOf<Element>;
}

// Rounds a row of n numbers to DepthOf<Rounded>(n) elements; for an odd n the last half is 0.
TFX_INLINE void RoundRow(const float* from, int64_t n, Rounded* to) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    Store(to + i / kNumbersOf<Rounded>, RoundedElements(Load(from + i)));
  }
  if (i == n) return;
  const auto rest = RoundedElements(LoadSome(from + i, n - i));
  memcpy(to + i / kNumbersOf<Rounded>, &rest, DepthOf<Rounded>(n - i) * sizeof(Rounded));
}

constexpr int64_t kStretch = 64;  // elements summed in one chain

// The left factor: element (i, d) is at[i * row + d * column].
template <typename Element>
struct LeftFactor {
  const Element* at;
  int64_t row;
  int64_t column;
};

// out[i][v] = start[i] + sum_d left[i, d] panel[d, v], for kRows rows and kVectors vectors of the
// panel. The sum is computed in stretches, each in order, so that rounding errors don't add up in
// one long chain.
template <int kRows, int kVectors, typename Element>
TFX_INLINE void ComputeTile(const LeftFactor<Element>& left, int64_t depth, const Element* panel,
                            int64_t lanes, const float* start, Floats (*out)[kVectors]) {
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) out[i][v] = Broadcast(start[i]);
  }
  for (int64_t begin = 0; begin < depth; begin += kStretch) {
    const int64_t end = begin + kStretch < depth ? begin + kStretch : depth;
    Floats part[kRows][kVectors] = {};
    for (int64_t d = begin; d < end; ++d) {
      const Element* at = left.at + d * left.column;
      decltype(Load(panel)) right[kVectors];
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) right[v] = Load(panel + d * lanes + v * kLanes);
#pragma GCC unroll 16
      for (int i = 0; i < kRows; ++i) {
        const auto x = Broadcast(at[i * left.row]);
#pragma GCC unroll 2
        for (int v = 0; v < kVectors; ++v) part[i][v] = MulAdd(x, right[v], part[i][v]);
      }
    }
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) out[i][v] += part[i][v];
    }
  }
}

}  // namespace tfx::core::TFX_ISA

#endif  // TFX_LARGEOUT_CORE_PRODUCT_TILE_H_
