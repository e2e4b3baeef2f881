// SPDX-License-Identifier: Apache-2.0
//
// Steps on labels and candidates, on the device and on the processor.

#ifndef TFX_LARGEOUT_TESTS_GPU_CANDIDATE_PROBLEM_H_
#define TFX_LARGEOUT_TESTS_GPU_CANDIDATE_PROBLEM_H_

#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "core/candidate_batch.h"
#include "core/candidate_update.h"
#include "tests/gpu/device_array.h"

namespace tfx::test {

// The bits of numbers in bfloat16, which they are.
inline std::vector<uint16_t> Halves(const std::vector<float>& numbers) {
  std::vector<uint16_t> halves(numbers.size());
  for (size_t i = 0; i < numbers.size(); ++i) {
    uint32_t bits;
    std::memcpy(&bits, &numbers[i], sizeof bits);
    halves[i] = static_cast<uint16_t>(bits >> 16);
  }
  return halves;
}

inline std::vector<float> Widened(const std::vector<uint16_t>& halves) {
  std::vector<float> numbers(halves.size());
  for (size_t i = 0; i < halves.size(); ++i) {
    const uint32_t bits = uint32_t{halves[i]} << 16;
    std::memcpy(&numbers[i], &bits, sizeof bits);
  }
  return numbers;
}

struct CandidateSizes {
  int64_t classes, width, batch, labels, candidates;
};

// Ids repeat, and some are -1; what stands there in gradients is NaN.
struct CandidateProblem {
  // `scale`: of whole numbers in [-2, 2], whose sums are exact; or, if it is 0, of numbers in
  // (-1, 1).
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

  // Sets gradients that nobody may read to NaN.
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

  core::CandidateBatch Batch() const {
    return {hidden.data(), labels.data(), candidates.data(), is_own,
            size.batch,    size.labels,   size.candidates};
  }

  core::LayerWeights Weights() const {
    return {kernel.data(), has_bias ? bias.data() : nullptr, false, size.classes, size.width};
  }

  // W and b as `halves` has them, whose numbers they are.
  core::LayerWeights WeightsIn(const std::vector<uint16_t> (&halves)[2]) const {
    return {halves[0].data(), has_bias ? halves[1].data() : nullptr, true, size.classes,
            size.width};
  }

  CandidateSizes size;
  bool is_own, has_bias = true;
  bool is_bfloat16 = false;  // W and b are to be; they are whole numbers then
  std::vector<float> kernel, bias, hidden, true_gradient, gradient;
  std::vector<int64_t> labels, candidates;
};

// The batch of a problem on the device.
struct CandidateBatchOnDevice {
  explicit CandidateBatchOnDevice(const CandidateProblem& problem)
      : hidden(problem.hidden),
        labels(problem.labels),
        candidates(problem.candidates),
        batch(problem.Batch()) {
    batch.hidden = hidden.data();
    batch.labels = labels.data();
    batch.candidates = candidates.data();
  }

  DeviceArray<float> hidden;
  DeviceArray<int64_t> labels, candidates;
  core::CandidateBatch batch;
};

}  // namespace tfx::test

#endif  // TFX_LARGEOUT_TESTS_GPU_CANDIDATE_PROBLEM_H_
