// SPDX-License-Identifier: Apache-2.0
//
// W, h and b with ties, bounds of the logits, and the exact results.

#ifndef TFX_LARGEOUT_TESTS_BOUNDED_TOP_K_PROBLEM_H_
#define TFX_LARGEOUT_TESTS_BOUNDED_TOP_K_PROBLEM_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "core/bounded_top_k.h"
#include "core/probed_top_k.h"
#include "tests/workers.h"

namespace tfx::core {

struct Results {
  Results(int64_t batch, int64_t k)
      : scores(batch * k), ids(batch * k), num_candidates(batch), logsumexp(batch) {}

  std::vector<float> scores;
  std::vector<int64_t> ids, num_candidates;
  std::vector<float> logsumexp;
};

// Whole numbers q_c and the bounds that core/bounded_top_k.h asks for.
struct Bounds {
  Bounds(const std::vector<float>& kernel, int64_t num_classes, int64_t width) {
    const int64_t num_blocks = (num_classes + 15) / 16;
    rows.resize(num_blocks * width * 16);
    scales.resize(num_blocks * 16);
    errors.resize(num_blocks * 16);
    const double n = std::ldexp(static_cast<double>(width) + 8, -24), g = n / (1 - n);
    for (int64_t c = 0; c < num_classes; ++c) {
      const float* row = kernel.data() + c * width;
      float largest = 0;
      for (int64_t d = 0; d < width; ++d) largest = std::max(largest, std::abs(row[d]));
      const float scale = scales[c] = (largest > 0 ? largest : 1.0f) / 127;
      double length = 0, residual = 0;
      for (int64_t d = 0; d < width; ++d) {
        const float q = std::round(row[d] / scale);
        rows[(c / 16 * width + d) * 16 + c % 16] = static_cast<int8_t>(q);
        length += double{row[d]} * row[d];
        const double r = row[d] - double{scale} * q;
        residual += r * r;
      }
      const double error = (1 + g) * std::sqrt(residual) + 2 * g * std::sqrt(length);
      errors[c] = static_cast<float>(error * (1 + std::ldexp(1, -20)) + std::ldexp(1, -110));
    }
  }

  std::vector<int8_t> rows;
  std::vector<float> scales, errors;
};

struct Problem {
  Problem(int64_t batch, int64_t width, int64_t num_classes, int64_t k)
      : hidden(batch * width), kernel(num_classes * width), bias(num_classes) {
    std::mt19937 random(7);
    std::normal_distribution<float> normal;
    for (auto* array : {&hidden, &kernel, &bias}) {
      for (float& x : *array) x = normal(random);
    }
    // Each class has an equal.
    for (int64_t c = 0; c < num_classes / 2; ++c) {
      const int64_t other = num_classes - 1 - c;
      std::copy_n(kernel.begin() + c * width, width, kernel.begin() + other * width);
      bias[other] = bias[c];
    }
    inputs = {};
    inputs.hidden = hidden.data();
    inputs.weights = {kernel.data(), bias.data(), false, num_classes, width};
    inputs.batch = batch;
    inputs.k = k;
    inputs.shard = {0, 1, num_classes};
  }

  Results Exact(InstructionSet set) const {
    Results r(inputs.batch, inputs.k);
    const Workers workers(set, 2);
    StreamedLogits(inputs, workers.execution,
                   {r.logsumexp.data(), nullptr, nullptr, r.scores.data(), r.ids.data(), nullptr});
    return r;
  }

  std::vector<float> hidden, kernel, bias;
  StreamedLogitsInputs inputs;
};

constexpr int64_t kRows = kClassesOfBlock;

// Lists of classes for core/probed_top_k.h. Class c is in list c % L; list 0 is the closest, then
// list 1.
struct Lists {
  Lists(const Problem& problem, int64_t num_lists) : ends(num_lists) {
    const StreamedLogitsInputs& in = problem.inputs;
    const Bounds in_order(problem.kernel, in.weights.num_classes, in.weights.width);
    std::vector<int64_t> order;
    for (int64_t l = 0; l < num_lists; ++l) {
      for (int64_t c = l; c < in.weights.num_classes; c += num_lists) order.push_back(c);
      while (order.size() % kRows != 0) order.push_back(-1);
      ends[l] = static_cast<int32_t>(order.size() / kRows);
    }
    classes.assign(order.begin(), order.end());
    rows.resize(order.size() * in.weights.width);
    scales.resize(order.size());
    errors.resize(order.size());
    for (size_t at = 0; at < order.size(); ++at) {
      const int64_t c = order[at];
      if (c < 0) continue;
      scales[at] = in_order.scales[c];
      errors[at] = in_order.errors[c];
      for (int64_t d = 0; d < in.weights.width; ++d) {
        rows[(at / kRows * in.weights.width + d) * kRows + at % kRows] =
            in_order.rows[(c / kRows * in.weights.width + d) * kRows + c % kRows];
      }
    }
    const int64_t blocks = (num_lists + kRows - 1) / kRows;
    centers.resize(blocks * in.weights.width * kRows);
    for (int64_t i = 0; i < blocks && in.weights.width > 0; ++i) {
      std::fill_n(centers.begin() + i * in.weights.width * kRows, kRows, 1.0f);
    }
    offsets.assign(blocks * kRows, 3);
    for (int64_t l = 0; l < blocks * kRows; ++l) penalties.push_back(static_cast<float>(l));
  }

  std::vector<int32_t> classes, ends;
  std::vector<int8_t> rows;
  std::vector<float> scales, errors, centers, offsets, penalties;
};

inline void Bounded(const Problem& problem, const Bounds& bounds, const Execution& execution,
                    Results* results) {
  BoundedTopK(problem.inputs, {bounds.rows.data(), bounds.scales.data(), bounds.errors.data()},
              execution,
              {results->scores.data(), results->ids.data(), results->num_candidates.data()});
}

inline void Probed(const Problem& problem, const Lists& lists, int64_t num_probed,
                   const Execution& execution, Results* results) {
  ProbedTopK(
      problem.inputs,
      {lists.rows.data(), lists.scales.data(), lists.errors.data(), lists.classes.data()},
      {lists.centers.data(), lists.offsets.data(), lists.penalties.data(), lists.ends.data(),
       static_cast<int64_t>(lists.ends.size()), static_cast<int64_t>(lists.classes.size()) / kRows},
      num_probed, execution,
      {results->scores.data(), results->ids.data(), results->num_candidates.data()});
}

}  // namespace tfx::core

#endif  // TFX_LARGEOUT_TESTS_BOUNDED_TOP_K_PROBLEM_H_
