// SPDX-License-Identifier: Apache-2.0
//
// Logits of a block of classes for a panel of examples, in slabs that stay in the caches, for
// sources compiled once per instruction set.

#ifndef TFX_LARGEOUT_CORE_LOGIT_SLABS_H_
#define TFX_LARGEOUT_CORE_LOGIT_SLABS_H_

#include "core/logit_operands.h"
#include "core/product_tile.h"
#include "core/simd.h"

namespace tfx::core::TFX_ISA {

// A tile is some classes x one or two vectors of examples, sized so that its sums stay in
// registers: there are 32 with AVX-512, else 16.
constexpr int kPanelVectors = 2;
template <int kVectors>
constexpr int kTileRows = kLanes == 16 && kVectors == 2 ? 12 : 6;
constexpr int kSlabRows = 60;              // a multiple of every tile
constexpr int64_t kBlockBytes = 64 << 10;  // of W: stays in the second-level cache

// The logits of up to kSlabRows classes for one vector of examples: small enough for the
// first-level cache, and enough work for tight loops.
typedef Floats Slab[kSlabRows];

TFX_INLINE int64_t RowsOfBlock(int64_t width) {
  const int64_t slabs = kBlockBytes / (4 * kSlabRows * (width > 0 ? width : 1));
  return kSlabRows * (slabs < 1 ? 1 : slabs > 16 ? 16 : slabs);
}

// slabs[v][first + i] = <W_i, h_v> + b_i.
template <int kRows, int kVectors, typename Element>
TFX_INLINE void ComputeLogits(const Element* rows, const float* bias, int64_t depth,
                              const Element* hidden, int64_t lanes, Slab* slabs, int first) {
  Floats o[kRows][kVectors];
  ComputeTile<kRows, kVectors>(LeftFactor<Element>{rows, depth, 1}, depth, hidden, lanes, bias, o);
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) slabs[v][first + i] = o[i][v];
  }
}

// Prefetches `size` elements, `ahead` of an address. They may be beyond the end of an array.
template <typename Element>
TFX_INLINE void Prefetch(const Element* from, int64_t ahead, int64_t size) {
  constexpr uintptr_t kLine = 64;
  const uintptr_t begin = reinterpret_cast<uintptr_t>(from) + ahead * sizeof(Element);
  for (uintptr_t at = begin; at < begin + size * sizeof(Element); at += kLine) {
    __builtin_prefetch(reinterpret_cast<const void*>(at));
  }
}

// Logits of up to kSlabRows classes for a panel of one or two vectors.
template <typename ElementOfRows, int kVectorsOfPanel>
struct Wide {
  typedef ElementOfRows Element;
  static constexpr int kVectors = kVectorsOfPanel;

  static void Compute(const Element* rows, const float* bias, int num_rows, int64_t width,
                      const HiddenPanel& panel, Slab* slabs) {
    constexpr int kRows = kTileRows<kVectors>;
    const int64_t depth = DepthOf<Element>(width);
    const Element* hidden = static_cast<const Element*>(panel.hidden);
    int i = 0;
    for (; i + kRows <= num_rows; i += kRows) {
      Prefetch(rows, (i + kRows) * depth, kRows * depth);
      ComputeLogits<kRows, kVectors>(rows + i * depth, bias + i, depth, hidden, panel.lanes, slabs,
                                     i);
    }
    for (; i < num_rows; ++i) {
      ComputeLogits<1, kVectors>(rows + i * depth, bias + i, depth, hidden, panel.lanes, slabs, i);
    }
  }
};

TFX_INLINE void ToFloats(const uint16_t* from, int64_t size, float* to) {
  for (int64_t i = 0; i < size; ++i) {
    const uint32_t bits = static_cast<uint32_t>(from[i]) << 16;
    memcpy(to + i, &bits, sizeof(bits));
  }
}

// Entries [begin, begin + size) of a float or bfloat16 array, as floats.
TFX_INLINE const float* AsFloats(const void* array, bool is_bfloat16, int64_t begin, int64_t size,
                                 float* scratch) {
  if (!is_bfloat16) return static_cast<const float*>(array) + begin;
  ToFloats(static_cast<const uint16_t*>(array) + begin, size, scratch);
  return scratch;
}

TFX_INLINE const float* Biases(const LogitRows& layer, int64_t begin, int64_t size,
                               float* scratch) {
  if (layer.bias != nullptr) return AsFloats(layer.bias, layer.is_bfloat16, begin, size, scratch);
  memset(scratch, 0, size * sizeof(float));
  return scratch;
}

// Rounds rows [first, first + num_rows) of W, each to DepthOf<Rounded>(D) elements.
TFX_INLINE void RoundRows(const LogitRows& layer, int64_t first, int64_t num_rows, Rounded* to) {
  constexpr int64_t kColumns = 64;
  float floats[kColumns];
  for (int64_t i = 0; i < num_rows; ++i) {
    for (int64_t d = 0; d < layer.width; d += kColumns) {
      const int64_t size = Min(kColumns, layer.width - d);
      const int64_t at = (first + i) * layer.width + d;
      RoundRow(AsFloats(layer.kernel, layer.is_bfloat16, at, size, floats), size,
               to + d / kNumbersOf<Rounded>);
    }
    to += DepthOf<Rounded>(layer.width);
  }
}

// Rows [first, first + num_rows) of W in the form for products.
TFX_INLINE const void* Rows(const LogitRows& layer, int64_t first, int64_t num_rows,
                            float* scratch) {
  if (!layer.rounds) {
    return AsFloats(layer.kernel, layer.is_bfloat16, first * layer.width, num_rows * layer.width,
                    scratch);
  }
  RoundRows(layer, first, num_rows, reinterpret_cast<Rounded*>(scratch));
  return scratch;
}

template <typename Element>
TFX_INLINE void Scatter(const Element* row, int64_t depth, int64_t lanes, Element* to) {
  for (int64_t d = 0; d < depth; ++d) to[d * lanes] = row[d];
}

TFX_INLINE void PackPanel(const HiddenPanel& panel, int64_t width, bool rounded, float* to) {
  if (width == 0) return;
  memset(to, 0, width * panel.lanes * sizeof(float));
  constexpr int64_t kColumns = 64;
  Rounded elements[kColumns];
  for (int64_t lane = 0; lane < panel.examples; ++lane) {
    const float* row = panel.hidden_rows + lane * width;
    if (!rounded) {
      Scatter(row, width, panel.lanes, to + lane);
      continue;
    }
    for (int64_t d = 0; d < width; d += kColumns) {
      const int64_t size = Min(kColumns, width - d);
      RoundRow(row + d, size, elements);
      Scatter(elements, DepthOf<Rounded>(size), panel.lanes,
              reinterpret_cast<Rounded*>(to) + d / kNumbersOf<Rounded> * panel.lanes + lane);
    }
  }
}

}  // namespace tfx::core::TFX_ISA

#endif  // TFX_LARGEOUT_CORE_LOGIT_SLABS_H_
