// SPDX-License-Identifier: Apache-2.0
//
// Compiled once an instruction set: see cmake/instruction_sets.cmake for what may be included.

#include "core/bounded_top_k_isa.h"

#include <math.h>

#include "core/logit_slabs.h"
#include "core/simd.h"

namespace tfx::core::TFX_ISA {
namespace {

constexpr int kVectors = kClassesOfBlock / kLanes;  // of a block
constexpr int kMostTogether = kLanes / 2;           // examples, whose sums stay in registers

// sums[i][v] = <q_c, h_i> for the classes c of vector v of a block. Where there would be few sums
// there are several chains of each, so that additions don't wait for one another.
template <int kExamples, typename Element>
TFX_INLINE void Dots(const Element* rows, int64_t width, const float* hidden,
                     Floats (*sums)[kVectors]) {
  constexpr int kChains = kExamples * kVectors < 4 ? 4 / (kExamples * kVectors) : 1;
  Floats parts[kChains][kExamples][kVectors] = {};
  const auto add = [=](int64_t d, Floats(*part)[kVectors]) __attribute__((always_inline)) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      const Floats q = Load(rows + d * kClassesOfBlock + v * kLanes);
#pragma GCC unroll 8
      for (int i = 0; i < kExamples; ++i) {
        part[i][v] = MulAdd(q, Broadcast(hidden[i * width + d]), part[i][v]);
      }
    }
  };
  int64_t d = 0;
  for (; d + kChains <= width; d += kChains) {
#pragma GCC unroll 4
    for (int j = 0; j < kChains; ++j) add(d + j, parts[j]);
  }
  for (; d < width; ++d) add(d, parts[0]);
#pragma GCC unroll 8
  for (int i = 0; i < kExamples; ++i) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      Floats sum = parts[0][i][v];
#pragma GCC unroll 4
      for (int j = 1; j < kChains; ++j) sum += parts[j][i][v];
      sums[i][v] = sum;
    }
  }
}

// Offers the lower bounds of some lanes to the heap.
void OfferBounds(Floats lower, uint32_t lanes, int64_t first_class, int64_t k,
                 BoundsWorker* worker) {
  for (; lanes != 0; lanes &= lanes - 1) {
    const int lane = __builtin_ctz(lanes);
    const ScoredClass bound = {lower[lane], static_cast<int32_t>(first_class + lane)};
    OfferToHeap(bound, worker->heap, worker->heap_size, k);
    if (worker->heap_size < k) ++worker->heap_size;
  }
  if (worker->heap_size == k) worker->threshold = worker->heap[0].score;
}

void AddSurvivors(Floats lower, Floats upper, uint32_t lanes, int64_t first_class,
                  BoundsWorker* worker) {
  for (; lanes != 0; lanes &= lanes - 1) {
    const int lane = __builtin_ctz(lanes);
    worker->survivors[worker->num_survivors++] = {lower[lane], upper[lane],
                                                  static_cast<int32_t>(first_class + lane)};
  }
}

// Bounds the logits of the vector of classes that begins at `first_class`.
TFX_INLINE void Bound(const BoundsPass& pass, Floats dot, int64_t first_class, const float* bias,
                      float norm, BoundsWorker* worker) {
  const Floats b = Load(bias);
  const Floats logit = Load(pass.bounded.scales + first_class) * dot + b;
  // NaN unless the logit is so small that no sum on the way to the exact one overflows.
  const Floats unknown = logit * 4.0f - logit * 4.0f;
  const Floats error = Load(pass.bounded.errors + first_class) * norm +
                       Max(b, Floats{} - b) * pass.error_of_bias + pass.smallest_error + unknown;
  const Floats sum = logit + error, lower = logit - error;
  const Floats upper = b == -INFINITY ? b : sum;
  const Floats threshold = Broadcast(worker->threshold);
  uint32_t lanes = ~Greater(threshold, upper) & ((1u << kLanes) - 1);  // also NaN
  if (lanes == 0) return;
  const int64_t rest = pass.num_classes - first_class;
  if (pass.bounded.classes == nullptr && rest < kLanes) lanes &= (1u << (rest > 0 ? rest : 0)) - 1;
  AddSurvivors(lower, upper, lanes, first_class, worker);
  OfferBounds(lower, lanes & Greater(lower, threshold), first_class, pass.k, worker);
}

template <int kExamples>
void BoundExamples(const BoundsPass& pass, int64_t block, const float* bias, int64_t example,
                   BoundsWorker* workers) {
  const int64_t width = pass.layer.width, first_class = block * kClassesOfBlock;
  Floats sums[kExamples][kVectors];
  Dots<kExamples>(pass.bounded.rows + first_class * width, width, pass.hidden + example * width,
                  sums);
  for (int i = 0; i < kExamples; ++i) {
    for (int v = 0; v < kVectors; ++v) {
      const int64_t at = v * kLanes;
      Bound(pass, sums[i][v], first_class + at, bias + at, pass.norms[example + i],
            workers + example + i);
    }
  }
}

// The biases of a block of classes that are in order.
TFX_INLINE const float* BiasesInOrder(const BoundsPass& pass, int64_t first, float* scratch) {
  const int64_t size = Min(kClassesOfBlock, pass.num_classes - first);
  const float* bias = Biases(pass.layer, first, size, scratch);
  if (size == kClassesOfBlock) return bias;
  memmove(scratch, bias, size * sizeof(float));  // values after the last class are not read
  memset(scratch + size, 0, (kClassesOfBlock - size) * sizeof(float));
  return scratch;
}

// The biases of a block of any classes; -infinity where there is none.
TFX_INLINE const float* BiasesOf(const BoundsPass& pass, const int32_t* classes, float* scratch) {
  for (int i = 0; i < kClassesOfBlock; ++i) {
    const bool is_class = classes[i] >= 0 && classes[i] < pass.num_classes;
    float bias;
    scratch[i] = is_class ? *Biases(pass.layer, classes[i], 1, &bias) : -INFINITY;
  }
  return scratch;
}

void Bounds(const BoundsPass& pass, int64_t begin, int64_t end, BoundsWorker* workers) {
  const int32_t* classes = pass.bounded.classes;
  float biases[kClassesOfBlock];
  for (int64_t block = begin; block < end; ++block) {
    const int64_t first = block * kClassesOfBlock;
    const float* bias = classes == nullptr ? BiasesInOrder(pass, first, biases)
                                           : BiasesOf(pass, classes + first, biases);
    for (int64_t i = 0; i < pass.batch;) {
      const int64_t rest = pass.batch - i;
      const int64_t together = rest >= kMostTogether ? kMostTogether
                               : rest >= 4           ? 4
                               : rest >= 2           ? 2
                                                     : 1;
      const auto run = together == 8   ? BoundExamples < kMostTogether < 8 ? 1 : 8 >
                       : together == 4 ? BoundExamples < kMostTogether < 4 ? 1 : 4 >
                       : together == 2 ? BoundExamples<2>
                                       : BoundExamples<1>;
      run(pass, block, bias, i, workers);
      i += together;
    }
  }
}

void Closeness(const RowLists& lists, int64_t width, const float* hidden, float length, float* to) {
  for (int64_t first = 0; first < lists.num_lists; first += kClassesOfBlock) {
    Floats sums[1][kVectors];
    Dots<1>(lists.centers + first * width, width, hidden, sums);
    for (int v = 0; v < kVectors; ++v) {
      const int64_t at = first + v * kLanes;
      Store(to + at, sums[0][v] + Load(lists.offsets + at) - Load(lists.penalties + at) * length);
    }
  }
}

}  // namespace

const BoundedTopKIsa kBoundedTopK = {Bounds, Closeness};

}  // namespace tfx::core::TFX_ISA
