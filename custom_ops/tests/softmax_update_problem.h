// SPDX-License-Identifier: Apache-2.0
//
// Layers and batches for tests of the backward step over all classes, on the processor and on a
// GPU.

#ifndef TFX_LARGEOUT_TESTS_SOFTMAX_UPDATE_PROBLEM_H_
#define TFX_LARGEOUT_TESTS_SOFTMAX_UPDATE_PROBLEM_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "core/softmax_update.h"
#include "tests/expect.h"

namespace tfx::test {

struct SoftmaxUpdateResults {
  std::vector<float> kernel, bias, hidden_gradient;

  bool operator==(const SoftmaxUpdateResults& other) const {
    return kernel == other.kernel && bias == other.bias && hidden_gradient == other.hidden_gradient;
  }
};

struct SoftmaxUpdateProblem {
  SoftmaxUpdateProblem(int64_t batch, int64_t width, int64_t num_classes, int64_t num_labels)
      : width(width),
        num_classes(num_classes),
        hidden(batch * width),
        kernel(num_classes * width),
        bias(num_classes),
        target_gradient(batch * num_labels),
        log_z_gradient(batch),
        mean_gradient(batch),
        logsumexp(batch),
        labels(batch * num_labels) {
    std::mt19937 random(3);
    std::normal_distribution<float> normal;
    for (auto* array :
         {&hidden, &kernel, &bias, &target_gradient, &log_z_gradient, &mean_gradient}) {
      for (float& x : *array) x = normal(random);
    }
    for (float& w : kernel) w /= std::sqrt(static_cast<float>(width));
    for (int64_t& label : labels) label = static_cast<int64_t>(random() % (num_classes + 1)) - 1;
    for (int64_t i = 0; i < batch; ++i) {
      double sum = 0;
      for (int64_t c = 0; c < num_classes; ++c) sum += std::exp(Logit(i, c));
      logsumexp[i] = static_cast<float>(std::log(sum));
    }
  }

  double Logit(int64_t i, int64_t c) const {
    double sum = bias[c];
    for (int64_t d = 0; d < width; ++d)
      sum += double{kernel[c * width + d]} * hidden[i * width + d];
    return sum;
  }

  // A batch, with the pointers of arrays from `of`.
  template <typename Of>
  core::SoftmaxBatch Batch(Of&& of, bool has_mean, bool rounds) const {
    return {of(hidden),
            of(labels),
            of(logsumexp),
            of(target_gradient),
            of(log_z_gradient),
            has_mean ? of(mean_gradient) : nullptr,
            static_cast<int64_t>(logsumexp.size()),
            logsumexp.empty() ? 0 : static_cast<int64_t>(labels.size() / logsumexp.size()),
            rounds};
  }

  // The definition, for a step of SGD with rate 1.
  SoftmaxUpdateResults Expected(bool has_mean) const {
    const int64_t batch = logsumexp.size(), num_labels = batch == 0 ? 0 : labels.size() / batch;
    std::vector<double> w(kernel.begin(), kernel.end()), b(bias.begin(), bias.end());
    std::vector<double> dh(hidden.size());
    for (int64_t i = 0; i < batch; ++i) {
      for (int64_t c = 0; c < num_classes; ++c) {
        double g = log_z_gradient[i] * std::exp(Logit(i, c) - logsumexp[i]);
        if (has_mean) g += mean_gradient[i] / static_cast<double>(num_classes);
        for (int64_t k = i * num_labels; k < (i + 1) * num_labels; ++k) {
          if (labels[k] == c) g += target_gradient[k];
        }
        b[c] -= g;
        for (int64_t d = 0; d < width; ++d) {
          w[c * width + d] -= g * hidden[i * width + d];
          dh[i * width + d] += g * kernel[c * width + d];
        }
      }
    }
    return {{w.begin(), w.end()}, {b.begin(), b.end()}, {dh.begin(), dh.end()}};
  }

  const int64_t width, num_classes;
  std::vector<float> hidden, kernel, bias, target_gradient, log_z_gradient, mean_gradient,
      logsumexp;
  std::vector<int64_t> labels;
};

inline void ExpectClose(const std::vector<float>& got, const std::vector<float>& expected,
                        float error) {
  float largest = 1;
  for (float x : expected) largest = std::max(largest, std::abs(x));
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT(std::abs(got[i] - expected[i]) <= error * largest);
  }
}

}  // namespace tfx::test

#endif  // TFX_LARGEOUT_TESTS_SOFTMAX_UPDATE_PROBLEM_H_
