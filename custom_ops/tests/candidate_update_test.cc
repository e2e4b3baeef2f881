// SPDX-License-Identifier: Apache-2.0
//
// Both candidate updates, and the logits, against loops over all places, and with many workers
// against one.

#include "core/candidate_update.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "core/candidate_logits.h"
#include "tests/candidate_problem.h"
#include "tests/expect.h"
#include "tests/workers.h"

namespace tfx::core {

using test::CandidateProblem;
using test::CandidateSizes;

struct Result {
  std::vector<float> hidden_gradient, kernel, bias;
  std::vector<uint32_t> ages;
};

// One step of SGD with rate 1, or of Adam.
Result Update(const CandidateProblem& problem, RowMethod method, const Execution& execution,
              bool update = true, bool gradient = true) {
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
  CandidateUpdate(
      weights, rows, problem.Batch(), {problem.true_gradient.data(), problem.gradient.data()},
      update ? &updater : nullptr, execution, gradient ? result.hidden_gradient.data() : nullptr);
  return result;
}

void StepsAreExact(const CandidateProblem& problem, InstructionSet set) {
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
  const Result step = Update(problem, RowMethod::kSgd, workers.execution, true, false);
  EXPECT(step.kernel == expected.kernel);
  EXPECT(step.bias == expected.bias);
}

void EachClassIsUpdatedOnce(const CandidateProblem& problem, InstructionSet set) {
  std::vector<uint32_t> ages(problem.size.classes);
  problem.ForPlaces([&](int64_t, int64_t c, float) { ages[c] = 1; });
  Workers workers(set, 2);
  EXPECT(Update(problem, RowMethod::kAdam, workers.execution).ages == ages);
}

void WorkersDontMatter(CandidateProblem problem, InstructionSet set) {
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

void LogitsAndHitsAreExact(const CandidateProblem& problem, InstructionSet set) {
  const CandidateSizes& size = problem.size;
  std::vector<float> true_logits(size.batch * size.labels, 99);
  std::vector<float> logits(size.batch * size.candidates, 99);
  std::vector<char> hits(logits.size(), 2);
  Workers workers(set, 3);
  CandidateLogits(problem.Weights(), problem.Batch(), workers.execution,
                  {true_logits.data(), logits.data(), reinterpret_cast<bool*>(hits.data())});
  const auto logit = [&](int64_t i, int64_t c) { return problem.Logit<float>(i, c); };
  for (int64_t i = 0; i < size.batch; ++i) {
    const int64_t* labels = problem.labels.data() + i * size.labels;
    for (int64_t k = 0; k < size.labels; ++k) {
      EXPECT(true_logits[i * size.labels + k] == logit(i, labels[k]));
    }
    for (int64_t at = i * size.candidates; at < (i + 1) * size.candidates; ++at) {
      const int64_t c = problem.CandidateAt(at);
      EXPECT(logits[at] == logit(i, c));
      EXPECT(hits[at] ==
             (c >= 0 && std::find(labels, labels + size.labels, c) != labels + size.labels));
    }
  }
}

void Run(InstructionSet set) {
  const CandidateSizes all_sizes[] = {
      {50, 20, 40, 2, 70},  {1, 1, 3, 2, 4},     {3000, 33, 100, 1, 300}, {9, 64, 1, 30, 2},
      {200, 5, 7, 0, 90},   {200, 5, 7, 3, 0},   {100000, 8, 65, 1, 40},  {30, 0, 7, 2, 9},
      {700, 9, 90, 2, 150}, {40, 3, 1500, 1, 20}};
  int seed = 0;
  for (const CandidateSizes& sizes : all_sizes) {
    for (bool own : {false, true}) {
      for (double padding : {0.0, 0.4, 1.0}) {
        const CandidateProblem problem(sizes, own, padding, /*scale=*/1, ++seed);
        StepsAreExact(problem, set);
        EachClassIsUpdatedOnce(problem, set);
        WorkersDontMatter(problem, set);
        LogitsAndHitsAreExact(problem, set);
      }
    }
  }
}

TEST(All) {
  for (InstructionSet set : InstructionSets()) Run(set);
}

}  // namespace tfx::core
