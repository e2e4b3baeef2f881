// SPDX-License-Identifier: Apache-2.0
//
// Layers for tests of streamed logits, on the processor and on a GPU.

#ifndef TFX_LARGEOUT_TESTS_STREAMED_LOGITS_PROBLEM_H_
#define TFX_LARGEOUT_TESTS_STREAMED_LOGITS_PROBLEM_H_

#include <cstdint>
#include <random>
#include <vector>

#include "core/streamed_logits.h"

namespace tfx::test {

struct StreamedLogitsResults {
  explicit StreamedLogitsResults(const core::StreamedLogitsInputs& inputs)
      : logsumexp(inputs.batch),
        target_logits(inputs.batch * inputs.num_labels),
        top_scores(inputs.batch * inputs.k),
        target_ranks(inputs.batch * inputs.num_labels),
        top_ids(inputs.batch * inputs.k) {}

  // `kept` may be null.
  core::StreamedLogitsOutputs Outputs(core::KeptProbabilities* kept) {
    return {logsumexp.data(),  target_logits.data(), target_ranks.data(),
            top_scores.data(), top_ids.data(),       kept};
  }

  std::vector<float> logsumexp, target_logits, top_scores;
  std::vector<int64_t> target_ranks, top_ids;
};

// A layer and a batch of integers: their logits are exact in any order of summation.
struct WholeNumbers {
  WholeNumbers(int64_t batch, int64_t width, int64_t num_classes, int64_t num_labels, int64_t k)
      : hidden(batch * width),
        kernel(num_classes * width),
        bias(num_classes),
        labels(batch * num_labels) {
    std::mt19937 random(3);
    for (auto* array : {&hidden, &kernel, &bias}) {
      for (float& x : *array) x = static_cast<float>(random() % 7) - 3;
    }
    for (int64_t& label : labels) label = static_cast<int64_t>(random() % (num_classes + 1)) - 1;
    inputs.weights = {nullptr, nullptr, false, num_classes, width};
    inputs.batch = batch;
    inputs.num_labels = num_labels;
    inputs.k = k;
    inputs.shard = {0, 1, num_classes};
  }

  // The inputs, with the pointers of arrays from `of`.
  template <typename Of>
  core::StreamedLogitsInputs Inputs(Of&& of) const {
    core::StreamedLogitsInputs in = inputs;
    in.hidden = of(hidden);
    in.weights.kernel = of(kernel);
    in.weights.bias = has_bias ? of(bias) : nullptr;
    in.labels = of(labels);
    in.target_scores = scores.empty() ? nullptr : of(scores);
    return in;
  }
  core::StreamedLogitsInputs OnHost() const {
    return Inputs([](const auto& array) { return array.data(); });
  }

  std::vector<float> hidden, kernel, bias, scores;
  std::vector<int64_t> labels;
  core::StreamedLogitsInputs inputs = {};  // without arrays
  bool has_bias = true;
};

}  // namespace tfx::test

#endif  // TFX_LARGEOUT_TESTS_STREAMED_LOGITS_PROBLEM_H_
