// SPDX-License-Identifier: Apache-2.0
//
// Common parts of the searches for the best k by bounds: see core/bounded_top_k.h.

#ifndef TFX_LARGEOUT_CORE_BOUNDED_LOGITS_H_
#define TFX_LARGEOUT_CORE_BOUNDED_LOGITS_H_

#include <cmath>
#include <cstdint>

#include "core/bounded_top_k_isa.h"
#include "core/execution.h"
#include "core/streamed_logits.h"
#include "core/streamed_logits_isa.h"

namespace tfx::core {

constexpr int64_t kMostWidthOfBounds = int64_t{1} << 20;

struct BoundedTopKOutputs {
  float* top_scores;        // [B, k]
  int64_t* top_ids;         // [B, k]
  int64_t* num_candidates;  // [B]: number of classes whose logit was computed from W
};

// Sets norms [B] to |h|, rounded up. Returns false if an h is too long for bounds, or has a NaN.
bool TakeNorms(const StreamedLogitsInputs& inputs, float* norms);

// The inputs of bounds for all examples. `norms` is the result of TakeNorms.
BoundsPass BoundsPassOf(const StreamedLogitsInputs& inputs, const BoundedRows& bounded,
                        const float* norms);

// Returns whether a logit is outside of the bounds of its class: they belong to another W.
inline bool IsOutOfBounds(const BoundedClass& bounds, float logit) {
  if (std::isnan(logit)) return !std::isnan(bounds.lower);  // NaN bound: unknown
  return logit < bounds.lower || logit > bounds.upper;
}

// Removes classes, of n, that are below the present threshold. Returns the number left.
int64_t RuleOut(float threshold, BoundedClass* classes, int64_t n);

// Sorts the n classes with logits, and writes the best k of example b, padded with scores of
// -infinity and ids of -1.
void WriteBest(int64_t b, int64_t k, ScoredClass* classes, int64_t n,
               const BoundedTopKOutputs& outputs);

// Computes the logits of all classes.
void TopKOfAllRows(const StreamedLogitsInputs& inputs, const Execution& execution,
                   const BoundedTopKOutputs& outputs);

// Logits of W for a few examples, by the code of StreamedLogits.
class RowLogits {
 public:
  // For examples [first, first + number): at most the size of a panel of streamed logits. `packed`
  // has room for D Lanes(isa, number) floats, and outlives this object.
  RowLogits(const StreamedLogitsInputs& inputs, const StreamedLogitsIsa& isa, int64_t first,
            int64_t number, float* packed);

  static int32_t Lanes(const StreamedLogitsIsa& isa, int64_t number) {
    return number <= isa.vector_lanes ? isa.vector_lanes : isa.panel_lanes;
  }

  // The logit of class `id` for the example `first + lane`. `scratch` has room for D floats.
  float operator()(int64_t lane, int64_t id, float* scratch) const {
    return isa_.target_logit(pass_, panel_, static_cast<int32_t>(lane), id, scratch);
  }

 private:
  const StreamedLogitsIsa& isa_;
  Panel panel_ = {};
  StreamedLogitsPass pass_;
};

}  // namespace tfx::core

#endif  // TFX_LARGEOUT_CORE_BOUNDED_LOGITS_H_
