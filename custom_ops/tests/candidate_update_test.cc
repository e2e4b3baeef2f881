// SPDX-License-Identifier: Apache-2.0
//
// Both candidate updates, and the logits, against loops over all places, and with many workers
// against one.

#include "core/candidate_update.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <thread>
#include <vector>

#include "core/candidate_logits.h"
#include "tests/expect.h"

namespace tfx::core {

struct Sizes {
  int64_t classes, width, batch, labels, candidates;
};

// A problem in whole numbers: sums are exact, in every order.
struct Problem {
  Problem(const Sizes& sizes, bool own, double padding, int seed) : size(sizes), is_own(own) {
    std::mt19937 random(seed);
    const auto whole = [&](int64_t n) {
      std::vector<float> x(n);
      for (float& entry : x) entry = static_cast<float>(static_cast<int>(random() % 5) - 2);
      return x;
    };
    const auto ids = [&](int64_t n) {
      std::vector<int64_t> x(n);
      for (int64_t& id : x) {
        id = random() % 1000 < 1000 * padding ? -1 : static_cast<int64_t>(random() % size.classes);
      }
      return x;
    };
    kernel = whole(size.classes * size.width);
    bias = whole(size.classes);
    hidden = whole(size.batch * size.width);
    labels = ids(size.batch * size.labels);
    candidates = ids((own ? size.batch : 1) * size.candidates);
    true_gradient = whole(size.batch * size.labels);
    gradient = whole(size.batch * size.candidates);
    const float nan = std::numeric_limits<float>::quiet_NaN();
    for (size_t i = 0; i < labels.size(); ++i) {
      if (labels[i] < 0) true_gradient[i] = nan;
    }
    for (size_t i = 0; i < gradient.size(); ++i) {
      if (candidates[i % candidates.size()] < 0) gradient[i] = nan;
    }
  }

  CandidateBatch Batch() const {
    return {hidden.data(), labels.data(), candidates.data(), is_own,
            size.batch,    size.labels,   size.candidates};
  }

  LayerWeights Weights() const {
    return {kernel.data(), bias.data(), false, size.classes, size.width};
  }

  // Calls visit(example, class, gradient, logit's place) for all places.
  template <typename Visit>
  void ForPlaces(const Visit& visit) const {
    for (int64_t i = 0; i < size.batch; ++i) {
      for (int64_t k = 0; k < size.labels; ++k) {
        const int64_t at = i * size.labels + k;
        if (labels[at] >= 0) visit(i, labels[at], true_gradient[at]);
      }
      for (int64_t s = 0; s < size.candidates; ++s) {
        const int64_t c = candidates[is_own ? i * size.candidates + s : s];
        if (c >= 0) visit(i, c, gradient[i * size.candidates + s]);
      }
    }
  }

  float Logit(int64_t i, int64_t c) const {
    if (c < 0) return 0;
    float sum = bias[c];
    for (int64_t d = 0; d < size.width; ++d) {
      sum += kernel[c * size.width + d] * hidden[i * size.width + d];
    }
    return sum;
  }

  Sizes size;
  bool is_own;
  std::vector<float> kernel, bias, hidden, true_gradient, gradient;
  std::vector<int64_t> labels, candidates;
};

// Each range on a thread of its own.
void OnThreads(int64_t n, const std::function<void(int64_t, int64_t)>& work, int64_t) {
  std::vector<std::thread> threads;
  for (int64_t i = 0; i < n; ++i) threads.emplace_back([&work, i] { work(i, i + 1); });
  for (std::thread& thread : threads) thread.join();
}

struct Workers {
  Workers(InstructionSet set, int count) : execution(set, count, on_threads, workspace) {}

  const ParallelFor on_threads = OnThreads;
  Workspace workspace;
  Execution execution;
};

struct Result {
  std::vector<float> hidden_gradient, kernel, bias;
  std::vector<uint32_t> ages;
};

// One step of SGD with rate 1, or of Adam.
Result Update(const Problem& problem, RowMethod method, const Execution& execution,
              bool update = true) {
  Result result = {std::vector<float>(problem.size.batch * problem.size.width, 99), problem.kernel,
                   problem.bias, std::vector<uint32_t>(problem.size.classes)};
  const bool adam = method == RowMethod::kAdam;
  std::vector<float> m(problem.kernel.size()), v = m, bias_m(problem.bias.size()), bias_v = bias_m;
  std::vector<uint32_t> bias_ages = result.ages;
  LayerRows rows = {{result.kernel.data(), false, problem.size.width, {}, nullptr},
                    {result.bias.data(), false, 1, {}, nullptr}};
  if (adam) {
    rows.kernel = {
        result.kernel.data(), false, problem.size.width, {m.data(), v.data()}, result.ages.data()};
    rows.bias = {result.bias.data(), false, 1, {bias_m.data(), bias_v.data()}, bias_ages.data()};
  }
  const RowStep step = {method, 1,      1,    std::numeric_limits<float>::infinity(), 0.9f, 0.999f,
                        0.1f,   0.001f, 1e-3f};
  const AdamCorrection correction(0.9, 0.999);
  const RowUpdater updater(step, &correction, execution.rows);
  const LayerWeights weights = {result.kernel.data(), result.bias.data(), false,
                                problem.size.classes, problem.size.width};
  const auto run = problem.is_own ? OwnCandidateUpdate : SharedCandidateUpdate;
  run(weights, rows, problem.Batch(), {problem.true_gradient.data(), problem.gradient.data()},
      update ? &updater : nullptr, execution, result.hidden_gradient.data());
  return result;
}

void StepsAreExact(const Problem& problem, InstructionSet set) {
  const int64_t width = problem.size.width;
  Result expected = {
      std::vector<float>(problem.size.batch * width), problem.kernel, problem.bias, {}};
  problem.ForPlaces([&](int64_t i, int64_t c, float g) {
    expected.bias[c] -= g;
    for (int64_t d = 0; d < width; ++d) {
      expected.hidden_gradient[i * width + d] += g * problem.kernel[c * width + d];
      expected.kernel[c * width + d] -= g * problem.hidden[i * width + d];
    }
  });
  Workers workers(set, 3);
  const Result result = Update(problem, RowMethod::kSgd, workers.execution);
  EXPECT(result.hidden_gradient == expected.hidden_gradient);
  EXPECT(result.kernel == expected.kernel);
  EXPECT(result.bias == expected.bias);
  const Result without = Update(problem, RowMethod::kSgd, workers.execution, false);
  EXPECT(without.hidden_gradient == expected.hidden_gradient);
  EXPECT(without.kernel == problem.kernel);
}

void EachClassIsUpdatedOnce(const Problem& problem, InstructionSet set) {
  std::vector<uint32_t> ages(problem.size.classes);
  problem.ForPlaces([&](int64_t, int64_t c, float) { ages[c] = 1; });
  Workers workers(set, 2);
  EXPECT(Update(problem, RowMethod::kAdam, workers.execution).ages == ages);
}

void WorkersDontMatter(Problem problem, InstructionSet set) {
  for (float& h : problem.hidden) h *= 0.1f;  // now the order of sums does
  Workers one(set, 1), four(set, 4);
  const Result alone = Update(problem, RowMethod::kAdam, one.execution);
  for (int turn = 0; turn < 3; ++turn) {
    const Result together = Update(problem, RowMethod::kAdam, four.execution);
    EXPECT(together.hidden_gradient == alone.hidden_gradient);
    EXPECT(together.kernel == alone.kernel);
    EXPECT(together.bias == alone.bias);
  }
}

void LogitsAndHitsAreExact(const Problem& problem, InstructionSet set) {
  const Sizes& size = problem.size;
  std::vector<float> true_logits(size.batch * size.labels, 99);
  std::vector<float> logits(size.batch * size.candidates, 99);
  std::vector<char> hits(logits.size(), 2);
  Workers workers(set, 3);
  CandidateLogits(problem.Weights(), problem.Batch(), workers.execution,
                  {true_logits.data(), logits.data(), reinterpret_cast<bool*>(hits.data())});
  for (int64_t i = 0; i < size.batch; ++i) {
    const int64_t* labels = problem.labels.data() + i * size.labels;
    for (int64_t k = 0; k < size.labels; ++k) {
      EXPECT(true_logits[i * size.labels + k] == problem.Logit(i, labels[k]));
    }
    for (int64_t s = 0; s < size.candidates; ++s) {
      const int64_t at = i * size.candidates + s;
      const int64_t c = problem.candidates[problem.is_own ? at : s];
      EXPECT(logits[at] == problem.Logit(i, c));
      EXPECT(hits[at] ==
             (c >= 0 && std::find(labels, labels + size.labels, c) != labels + size.labels));
    }
  }
}

void Run(InstructionSet set) {
  const Sizes all_sizes[] = {{50, 20, 40, 2, 70},    {1, 1, 3, 2, 4},    {3000, 33, 100, 1, 300},
                             {9, 64, 1, 30, 2},      {200, 5, 7, 0, 90}, {200, 5, 7, 3, 0},
                             {100000, 8, 65, 1, 40}, {30, 0, 7, 2, 9},   {700, 9, 90, 2, 150},
                             {40, 3, 1500, 1, 20}};
  int seed = 0;
  for (const Sizes& sizes : all_sizes) {
    for (bool own : {false, true}) {
      for (double padding : {0.0, 0.4, 1.0}) {
        const Problem problem(sizes, own, padding, ++seed);
        StepsAreExact(problem, set);
        EachClassIsUpdatedOnce(problem, set);
        WorkersDontMatter(problem, set);
        LogitsAndHitsAreExact(problem, set);
      }
    }
  }
}

}  // namespace tfx::core

int main() {
  for (tfx::core::InstructionSet set : tfx::core::kInstructionSets) {
    if (tfx::core::Supports(set)) tfx::core::Run(set);
  }
  return tfx::test::Result();
}
