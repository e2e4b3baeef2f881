// SPDX-License-Identifier: Apache-2.0

#include "core/bounded_top_k.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <thread>
#include <vector>

#include "tests/expect.h"

namespace tfx::core {

// As parallel as can be: sanitizers see every race.
void OneThreadAnIndex(int64_t n, const std::function<void(int64_t, int64_t)>& work, int64_t) {
  std::vector<std::thread> threads;
  for (int64_t i = 0; i < n; ++i) threads.emplace_back(work, i, i + 1);
  for (std::thread& thread : threads) thread.join();
}

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
    inputs.kernel = kernel.data();
    inputs.bias = bias.data();
    inputs.batch = batch;
    inputs.width = width;
    inputs.num_classes = num_classes;
    inputs.k = k;
    inputs.shard = {0, 1, num_classes};
  }

  Results Exact(InstructionSet set) const {
    Results r(inputs.batch, inputs.k);
    const ParallelFor on_threads = OneThreadAnIndex;
    Workspace workspace;
    StreamedLogits(inputs, Execution(set, 2, on_threads, workspace),
                   {r.logsumexp.data(), nullptr, nullptr, r.scores.data(), r.ids.data(), nullptr});
    return r;
  }

  Results Bounded(InstructionSet set, int num_workers) const {
    const Bounds bounds(kernel, inputs.num_classes, inputs.width);
    Results r(inputs.batch, inputs.k);
    const ParallelFor on_threads = OneThreadAnIndex;
    Workspace workspace;
    BoundedTopK(inputs, {bounds.rows.data(), bounds.scales.data(), bounds.errors.data()},
                Execution(set, num_workers, on_threads, workspace),
                {r.scores.data(), r.ids.data(), r.num_candidates.data()});
    return r;
  }

  std::vector<float> hidden, kernel, bias;
  StreamedLogitsInputs inputs;
};

// Bit by bit, NaN too; returns the most candidates of an example.
int64_t Agrees(const Problem& problem) {
  int64_t most = 0;
  for (InstructionSet set : kInstructionSets) {
    if (!Supports(set)) continue;
    const Results exact = problem.Exact(set);
    for (int num_workers : {1, 3}) {
      const Results bounded = problem.Bounded(set, num_workers);
      EXPECT(bounded.ids == exact.ids);
      for (size_t i = 0; i < exact.scores.size(); ++i) {
        EXPECT(bounded.scores[i] == exact.scores[i] ||
               (std::isnan(bounded.scores[i]) && std::isnan(exact.scores[i])));
      }
      for (int64_t number : bounded.num_candidates) most = std::max(most, number);
    }
  }
  return most;
}

void Test(int64_t batch, int64_t width, int64_t num_classes, int64_t k, bool uses_bounds) {
  const int64_t most = Agrees(Problem(batch, width, num_classes, k));
  EXPECT((most <= num_classes / 8) == uses_bounds);
}

// What bounds can't tell apart, or don't hold for, goes through all rows.
void TestHardProblems() {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const auto with = [](auto change) {
    Problem problem(3, 9, 3001, 5);
    change(&problem);
    return Agrees(problem);
  };
  EXPECT(with([](Problem* p) {
           std::fill(p->kernel.begin(), p->kernel.end(), 1.0f);
           std::fill(p->bias.begin(), p->bias.end(), 1.0f);
         }) == 3001);
  EXPECT(with([](Problem* p) { p->hidden[10] = NAN; }) == 3001);
  EXPECT(with([](Problem* p) { p->hidden[10] = kInfinity; }) == 3001);
  EXPECT(with([](Problem* p) { p->hidden[10] = 1e30f; }) == 3001);
  EXPECT(with([](Problem* p) { std::fill(p->hidden.begin(), p->hidden.end(), 0.0f); }) < 3001);
  EXPECT(with([](Problem* p) {
           p->bias[7] = NAN;
           p->bias[9] = kInfinity;
           p->bias[8] = 3e38f;
         }) < 3001);
  EXPECT(with([](Problem* p) {
           for (int c = 0; c < 3001; ++c) p->bias[c] = c % 8 == 0 ? 1.0f : -kInfinity;
         }) < 3001);
  EXPECT(with([](Problem* p) { std::fill(p->bias.begin() + 3, p->bias.end(), -kInfinity); }) ==
         3001);
  // Each class beats those before it.
  EXPECT(with([](Problem* p) {
           for (int c = 0; c < 3001; ++c) p->bias[c] = static_cast<float>(c);
         }) < 3001);
}

}  // namespace tfx::core

int main() {
  using tfx::core::Test;
  for (int64_t batch = 1; batch <= 8; ++batch) Test(batch, 64, 5003, 10, true);
  Test(1, 1, 3001, 1, true);
  Test(1, 7, 20001, 13, true);
  Test(2, 3, 16 * 512, 3, true);
  Test(9, 64, 3001, 10, false);
  Test(0, 4, 100, 1, true);
  Test(2, 4, 100, 100, false);
  Test(2, 4, 100, 0, false);
  Test(1, 0, 3001, 2, true);
  tfx::core::TestHardProblems();
  return tfx::test::Result();
}
