// SPDX-License-Identifier: Apache-2.0
//
// Steps on labels and candidates, for tests on the processor and on a GPU.

#ifndef TFX_LARGEOUT_TESTS_CANDIDATE_PROBLEM_H_
#define TFX_LARGEOUT_TESTS_CANDIDATE_PROBLEM_H_

#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "core/candidate_batch.h"
#include "core/candidate_update.h"

namespace tfx::test {

struct CandidateSizes {
  int64_t classes, width, batch, labels, candidates;
};

// Ids repeat, and some are -1; gradients are NaN there.
struct CandidateProblem {
  // `scale`: factor of integers in [-2, 2], whose sums are exact; or 0: numbers in (-1, 1).
  CandidateProblem(const CandidateSizes& sizes, bool own, double padding, float scale, int seed)
      : size(sizes), is_own(own) {
    std::mt19937 random(seed);
    std::uniform_real_distribution<float> any(-1, 1);
    const auto numbers = [&](int64_t n) {
      std::vector<float> x(n);
      for (float& entry : x) {
        entry = scale == 0 ? any(random)
                           : scale * static_cast<float>(static_cast<int>(random() % 5) - 2);
      }
      return x;
    };
    const auto ids = [&](int64_t n) {
      std::vector<int64_t> x(n);
      for (int64_t& id : x) {
        id = random() % 1000 < 1000 * padding ? -1 : static_cast<int64_t>(random() % size.classes);
      }
      return x;
    };
    kernel = numbers(size.classes * size.width);
    bias = numbers(size.classes);
    hidden = numbers(size.batch * size.width);
    labels = ids(size.batch * size.labels);
    candidates = ids((own ? size.batch : 1) * size.candidates);
    true_gradient = numbers(size.batch * size.labels);
    gradient = numbers(size.batch * size.candidates);
    MarkPadding();
  }

  // Sets gradients that must not be read to NaN.
  void MarkPadding() {
    const float nan = std::numeric_limits<float>::quiet_NaN();
    const auto is_class = [&](int64_t id) { return id >= 0 && id < size.classes; };
    for (size_t i = 0; i < labels.size(); ++i) {
      if (!is_class(labels[i])) true_gradient[i] = nan;
    }
    for (size_t i = 0; i < gradient.size(); ++i) {
      if (!is_class(candidates[i % candidates.size()])) gradient[i] = nan;
    }
  }

  // The batch, with the pointers of arrays from `of`.
  template <typename Of>
  core::CandidateBatch Batch(Of&& of) const {
    return {of(hidden), of(labels),  of(candidates), is_own,
            size.batch, size.labels, size.candidates};
  }
  core::CandidateBatch Batch() const {
    return Batch([](const auto& array) { return array.data(); });
  }

  core::LayerWeights Weights() const {
    return {kernel.data(), has_bias ? bias.data() : nullptr, false, size.classes, size.width};
  }

  // Calls visit(example, class, gradient) for all positions of classes, labels of an example first.
  template <typename Visit>
  void ForPlaces(const Visit& visit) const {
    for (int64_t i = 0; i < size.batch; ++i) {
      for (int64_t at = i * size.labels; at < (i + 1) * size.labels; ++at) {
        if (labels[at] >= 0) visit(i, labels[at], true_gradient[at]);
      }
      for (int64_t at = i * size.candidates; at < (i + 1) * size.candidates; ++at) {
        const int64_t c = CandidateAt(at);
        if (c >= 0) visit(i, c, gradient[at]);
      }
    }
  }

  // The candidate of a logit, [N, S].
  int64_t CandidateAt(int64_t at) const { return candidates[is_own ? at : at % size.candidates]; }

  // 0 at padding.
  template <typename T>
  T Logit(int64_t i, int64_t c) const {
    if (c < 0) return 0;
    T sum = 0;
    for (int64_t d = 0; d < size.width; ++d) {
      sum += static_cast<T>(kernel[c * size.width + d]) * hidden[i * size.width + d];
    }
    return sum + bias[c];
  }

  // W and b with the numbers of `halves`.
  core::LayerWeights WeightsIn(const std::vector<uint16_t> (&halves)[2]) const {
    return {halves[0].data(), has_bias ? halves[1].data() : nullptr, true, size.classes,
            size.width};
  }

  CandidateSizes size;
  bool is_own, has_bias = true;
  bool is_bfloat16 = false;  // W and b are bfloat16, with integer values
  std::vector<float> kernel, bias, hidden, true_gradient, gradient;
  std::vector<int64_t> labels, candidates;
};

}  // namespace tfx::test

#endif  // TFX_LARGEOUT_TESTS_CANDIDATE_PROBLEM_H_
