// SPDX-License-Identifier: Apache-2.0
//
// What the searches for the best k by bounds share: see core/bounded_top_k.h for the bounds.

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
  int64_t* num_candidates;  // [B]: how many classes got their logit from W
};

// Sets norms [B] to |h|, rounded up. Returns false if an h is too long for bounds, or has a NaN.
bool TakeNorms(const StreamedLogitsInputs& inputs, float* norms);

// What bounds are computed from, for all examples. `norms` is what TakeNorms sets.
BoundsPass BoundsPassOf(const StreamedLogitsInputs& inputs, const BoundedRows& bounded,
                        const float* norms);

// Says whether a logit is not what the bounds of its class allow: they are those of another W.
inline bool IsOutOfBounds(const BoundedClass& bounds, float logit) {
  if (std::isnan(logit)) return !std::isnan(bounds.lower);  // NaN as a bound: nothing is known
  return logit < bounds.lower || logit > bounds.upper;
}

// Leaves classes out, of n, that are below what has become of the threshold. Returns how many are
// left.
int64_t RuleOut(float threshold, BoundedClass* classes, int64_t n);

// Sorts the n classes that got their logit, and writes the best k of example b; where there are
// fewer, scores of -infinity and ids of -1.
void WriteBest(int64_t b, int64_t k, ScoredClass* classes, int64_t n,
               const BoundedTopKOutputs& outputs);

// All classes get their logits.
void TopKOfAllRows(const StreamedLogitsInputs& inputs, const Execution& execution,
                   const BoundedTopKOutputs& outputs);

// Logits of W for a few examples, by the code that StreamedLogits uses.
class RowLogits {
 public:
  // For examples [first, first + number): as many as a panel of streamed logits has at most.
  // `packed` has room for D Lanes(isa, number) floats, and outlives this object.
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
