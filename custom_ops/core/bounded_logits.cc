// SPDX-License-Identifier: Apache-2.0

#include "core/bounded_logits.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace tfx::core {
namespace {

LogitRows LayerOf(const LayerWeights& weights) {
  return {weights.kernel, weights.bias, weights.is_bfloat16, false, weights.width};
}

}  // namespace

bool TakeNorms(const StreamedLogitsInputs& inputs, float* norms) {
  for (int64_t b = 0; b < inputs.batch; ++b) {
    double square = 0;
    for (int64_t d = 0; d < inputs.weights.width; ++d) {
      const double h = inputs.hidden[b * inputs.weights.width + d];
      square += h * h;
    }
    if (!(square <= std::ldexp(1, 100))) return false;
    const double norm = std::sqrt(square) * (1 + std::ldexp(1, -20)) + std::ldexp(1, -100);
    norms[b] = static_cast<float>(norm);
  }
  return true;
}

BoundsPass BoundsPassOf(const StreamedLogitsInputs& inputs, const BoundedRows& bounded,
                        const float* norms) {
  const auto width = static_cast<double>(inputs.weights.width);
  const double roundings = width / 64 + 24;  // that a bias goes through
  BoundsPass pass;
  pass.bounded = bounded;
  pass.layer = LayerOf(inputs.weights);
  pass.num_classes = inputs.weights.num_classes;
  pass.k = inputs.k;
  pass.hidden = inputs.hidden;
  pass.batch = inputs.batch;
  pass.norms = norms;
  pass.error_of_bias = static_cast<float>(1.01 * std::ldexp(roundings, -24));
  pass.smallest_error = static_cast<float>(std::ldexp(4 * width + 64, -126));
  return pass;
}

int64_t RuleOut(float threshold, BoundedClass* classes, int64_t n) {
  const auto is_below = [=](const BoundedClass& bound) { return bound.upper < threshold; };
  return std::remove_if(classes, classes + n, is_below) - classes;
}

void WriteBest(int64_t b, int64_t k, ScoredClass* classes, int64_t n,
               const BoundedTopKOutputs& outputs) {
  const int64_t number = std::min(k, n);
  outputs.num_candidates[b] = n;
  std::partial_sort(classes, classes + number, classes + n, RanksAbove);
  for (int64_t i = 0; i < k; ++i) {
    constexpr ScoredClass kNone = {-std::numeric_limits<float>::infinity(), -1};
    const ScoredClass best = i < number ? classes[i] : kNone;
    outputs.top_scores[b * k + i] = best.score;
    outputs.top_ids[b * k + i] = best.id;
  }
}

void TopKOfAllRows(const StreamedLogitsInputs& inputs, const Execution& execution,
                   const BoundedTopKOutputs& outputs) {
  float* logsumexp = execution.Take<float>(inputs.batch);
  StreamedLogits(inputs, execution,
                 {logsumexp, nullptr, nullptr, outputs.top_scores, outputs.top_ids, nullptr});
  std::fill_n(outputs.num_candidates, inputs.batch, inputs.weights.num_classes);
}

RowLogits::RowLogits(const StreamedLogitsInputs& inputs, const StreamedLogitsIsa& isa,
                     int64_t first, int64_t number, float* packed)
    : isa_(isa) {
  panel_.examples = static_cast<int32_t>(number);
  panel_.lanes = Lanes(isa, number);
  panel_.hidden_rows = inputs.hidden + first * inputs.weights.width;
  panel_.hidden = packed;
  isa.pack_panel(panel_, inputs.weights.width, false, packed);
  pass_ = {&panel_,
           1,
           LayerOf(inputs.weights),
           0,
           inputs.k,
           false,
           0,
           inputs.shard.first,
           inputs.shard.stride,
           nullptr};
}

}  // namespace tfx::core
