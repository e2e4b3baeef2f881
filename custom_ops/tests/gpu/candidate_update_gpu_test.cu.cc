// SPDX-License-Identifier: Apache-2.0
//
// Compares the step on labels and candidates on a GPU and on the processor.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "core/candidate_update.h"
#include "core/gpu/candidate_update.h"
#include "tests/bfloat16.h"
#include "tests/candidate_problem.h"
#include "tests/expect.h"
#include "tests/gpu/device_array.h"
#include "tests/gpu/failing_launches.h"
#include "tests/workers.h"

namespace tfx::core {
namespace {

using test::CandidateProblem;
using test::CandidateSizes;
using test::DeviceArray;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// A rule with numbers for which integers stay exact; for Adam, no row is new.
struct Rule {
  RowMethod method;
  float learning_rate = 0.5f;
  double weight_decay = 0;
  float clip_norm = kInfinity;
  double beta_1 = 0.5, beta_2 = 0.75;

  RowStep Step() const {
    RowStep step = {};
    step.method = method;
    step.learning_rate = learning_rate;
    step.kept = static_cast<float>(1 - learning_rate * weight_decay);
    step.clip_norm = clip_norm;
    step.momentum = static_cast<float>(beta_1);
    step.beta_2 = static_cast<float>(beta_2);
    step.rest_1 = static_cast<float>(1 - beta_1);
    step.rest_2 = static_cast<float>(1 - beta_2);
    step.epsilon = 0.25f;
    return step;
  }
};

// The changes of a step to W and then to b.
struct State {
  explicit State(const CandidateProblem& problem) : State(problem.kernel, problem.bias) {}
  State(const std::vector<float>& kernel, const std::vector<float>& bias)
      : weights{kernel, bias},
        first{std::vector<float>(kernel.size(), 0.5f), std::vector<float>(bias.size(), 0.5f)},
        second{std::vector<float>(kernel.size(), 2), std::vector<float>(bias.size(), 2)},
        ages{std::vector<uint32_t>(bias.size()), std::vector<uint32_t>(bias.size(), 7)} {
    for (size_t c = 0; c < bias.size(); ++c) {
      ages[0][c] = c % 3 == 0 ? 0x7fffffff : static_cast<uint32_t>(c % 5 * 10000);
    }
  }

  bool operator==(const State& other) const {
    return hidden_gradient == other.hidden_gradient && HasRowsOf(other);
  }

  bool HasRowsOf(const State& other) const {
    return weights[0] == other.weights[0] && weights[1] == other.weights[1] &&
           first[0] == other.first[0] && first[1] == other.first[1] &&
           second[0] == other.second[0] && second[1] == other.second[1] &&
           ages[0] == other.ages[0] && ages[1] == other.ages[1];
  }

  std::vector<float> weights[2], first[2], second[2], hidden_gradient;
  std::vector<uint32_t> ages[2];
};

int NumSlots(RowMethod method) {
  return method == RowMethod::kSgd ? 0 : method == RowMethod::kAdam ? 2 : 1;
}

WeightRows RowsOf(RowMethod method, int64_t width, void* weights, bool is_bfloat16, float* first,
                  float* second, uint32_t* ages) {
  const int num_slots = NumSlots(method);
  return {weights,
          is_bfloat16,
          width,
          {num_slots > 0 ? first : nullptr, num_slots > 1 ? second : nullptr},
          method == RowMethod::kAdam ? ages : nullptr};
}

State OnProcessor(const CandidateProblem& problem, const Rule* rule, State state) {
  // Not kBaseline, where a multiply-add rounds twice.
  const InstructionSet set =
      Supports(InstructionSet::kAvx2) ? InstructionSet::kAvx2 : InstructionSet::kBaseline;
  const Workers workers(set);
  const RowMethod method = rule == nullptr ? RowMethod::kSgd : rule->method;
  LayerRows rows = {};
  std::vector<uint16_t> halves[2] = {test::Halves(state.weights[0]),
                                     test::Halves(state.weights[1])};
  const auto rows_of = [&](int i, int64_t width) {
    void* const weights_of =
        problem.is_bfloat16 ? static_cast<void*>(halves[i].data()) : state.weights[i].data();
    return RowsOf(method, width, weights_of, problem.is_bfloat16, state.first[i].data(),
                  state.second[i].data(), state.ages[i].data());
  };
  rows.kernel = rows_of(0, problem.size.width);
  if (problem.has_bias) rows.bias = rows_of(1, 1);
  const AdamCorrection correction(rule == nullptr ? 0 : rule->beta_1,
                                  rule == nullptr ? 0 : rule->beta_2);
  const RowStep step = rule == nullptr ? RowStep{} : rule->Step();
  const RowUpdater updater(step, &correction, workers.execution.rows);
  LayerWeights weights = problem.Weights();
  weights.kernel = rows.kernel.weights;
  weights.is_bfloat16 = problem.is_bfloat16;
  state.hidden_gradient.assign(problem.hidden.size(), 99);
  CandidateUpdate(
      weights, rows, problem.Batch(), {problem.true_gradient.data(), problem.gradient.data()},
      rule == nullptr ? nullptr : &updater, workers.execution, state.hidden_gradient.data());
  for (int i = 0; problem.is_bfloat16 && i < 2; ++i) state.weights[i] = test::Widened(halves[i]);
  return state;
}

// Expects success, or the error in `got` if given.
State OnGpu(const CandidateProblem& problem, const Rule* rule, State state,
            gpu::Error* got = nullptr, bool gradient = true) {
  test::DeviceCopies of;
  const CandidateBatch batch = problem.Batch(of);
  const std::vector<uint16_t> halves[2] = {test::Halves(state.weights[0]),
                                           test::Halves(state.weights[1])};
  const std::vector<float> rate = {rule == nullptr ? 0 : rule->learning_rate};
  const RowMethod method = rule == nullptr ? RowMethod::kSgd : rule->method;
  state.hidden_gradient.assign(problem.hidden.size(), 0);
  const auto rows_of = [&](int i, int64_t width) {
    void* const weights_of =
        problem.is_bfloat16 ? static_cast<void*>(of(halves[i])) : of(state.weights[i]);
    return RowsOf(method, width, weights_of, problem.is_bfloat16, of(state.first[i]),
                  of(state.second[i]), of(state.ages[i]));
  };
  LayerRows rows = {};
  rows.kernel = rows_of(0, problem.size.width);
  if (problem.has_bias) rows.bias = rows_of(1, 1);
  LayerWeights weights = problem.Weights();
  weights.kernel = rows.kernel.weights;
  weights.bias = rows.bias.weights;
  weights.is_bfloat16 = problem.is_bfloat16;
  gpu::RowRule on_gpu = {};
  if (rule != nullptr) {
    on_gpu = {rule->Step(), of(rate), rule->weight_decay, rule->beta_1, rule->beta_2};
    on_gpu.step.learning_rate = on_gpu.step.kept = std::nanf("");  // nobody looks at them
  }
  const int64_t bytes = gpu::CandidateUpdateScratchBytes(weights, batch);
  const DeviceArray<double> scratch(bytes / sizeof(double));
  const gpu::Error error = gpu::CandidateUpdate(
      nullptr, weights, rows, batch, {of(problem.true_gradient), of(problem.gradient)},
      rule == nullptr ? nullptr : &on_gpu, nullptr, scratch.data(),
      gradient ? of(state.hidden_gradient) : nullptr);
  EXPECT(got != nullptr || error.ok());
  if (got != nullptr) *got = error;
  for (int i = 0; i < 2; ++i) {
    state.weights[i] =
        problem.is_bfloat16 ? test::Widened(of.Now(halves[i])) : of.Now(state.weights[i]);
    of.Back(&state.first[i]);
    of.Back(&state.second[i]);
    of.Back(&state.ages[i]);
  }
  if (gradient) of.Back(&state.hidden_gradient);
  return state;
}

// Two steps, the second with the slots that the first has left. Both are on weights that are whole
// numbers, so that dL/dh is exact too.
void AgreesWithTheProcessor(const CandidateProblem& problem, const Rule& rule) {
  State before(problem);
  for (int step = 0; step < 2; ++step) {
    const State after = OnGpu(problem, &rule, before);
    EXPECT(after == OnProcessor(problem, &rule, before));
    EXPECT(OnGpu(problem, nullptr, before) == OnProcessor(problem, nullptr, before));
    EXPECT(OnGpu(problem, &rule, before, nullptr, false).HasRowsOf(after));
    before = after;
    before.weights[0] = problem.kernel;
    before.weights[1] = problem.bias;
  }
}

const Rule kRules[] = {
    {RowMethod::kSgd},      {RowMethod::kMomentum, 0.5f, 0.5},
    {RowMethod::kNesterov}, {RowMethod::kAdagrad, 0.5f, 0, 2},
    {RowMethod::kAdam},     {RowMethod::kAdam, 0.25f, 0.5, 1, 0.9, 0.999},
};

TEST(AllRules) {
  constexpr int kNumRules = sizeof kRules / sizeof *kRules;
  const struct {
    CandidateSizes size;
    double padding;
  } kCases[] = {
      {{50, 20, 40, 2, 70}, 0.4}, {{1, 1, 3, 2, 1}, 0},  {{1000, 290, 5, 1, 33}, 0.1},
      {{9, 7, 1, 30, 2}, 0.2},    {{20, 5, 7, 0, 9}, 1}, {{20, 5, 7, 3, 0}, 0},
      {{30, 3, 0, 2, 9}, 0.2},    {{9, 4, 5, 2, 8}, 1},  {{70000, 2, 700, 1, 3}, 0.1},
  };
  int number = 0;
  for (const auto& one : kCases) {
    for (bool own : {false, true}) {
      CandidateProblem problem(one.size, own, one.padding, 1, number);
      problem.has_bias = number % 4 != 3;
      const Rule& rule = kRules[(number + (own ? kNumRules / 2 : 0)) % kNumRules];
      AgreesWithTheProcessor(problem, rule);
      problem.is_bfloat16 = true;
      AgreesWithTheProcessor(problem, rule);
    }
    ++number;
  }
}

// One class, in all places.
TEST(OneClassOfAll) {
  for (bool own : {false, true}) {
    CandidateProblem problem({5, 9, 20, 1, 40}, own, 0, 1, 3);
    std::fill(problem.labels.begin(), problem.labels.end(), 4);
    std::fill(problem.candidates.begin(), problem.candidates.end(), 4);
    for (const Rule& rule : kRules) AgreesWithTheProcessor(problem, rule);
  }
}

// Nothing outside of W is read or written, and gradients there are ignored.
TEST(IdsWithoutARow) {
  for (bool own : {false, true}) {
    CandidateProblem problem({10, 3, 2, 3, 4}, own, 0, 1, 5);
    problem.labels = {10, 1LL << 40, -7, 3, -1, 3};
    for (size_t i = 0; i < problem.candidates.size(); i += 4) {
      const int64_t ids[] = {10, 3, -(1LL << 50), 1LL << 32};
      std::copy_n(ids, 4, problem.candidates.begin() + i);
    }
    problem.MarkPadding();
    const State state(problem);
    const State strange = OnGpu(problem, &kRules[4], state);
    for (std::vector<int64_t>* ids : {&problem.labels, &problem.candidates}) {
      for (int64_t& id : *ids) id = id >= 10 || id < 0 ? -1 : id;
    }
    EXPECT(strange == OnProcessor(problem, &kRules[4], state));
  }
}

// Errors of a step, and of plain sums in float32, relative to float64.
TEST(IsAsExactAsFloat32) {
  for (bool own : {false, true}) {
    const CandidateProblem problem({7, 40, 300, 1, 5}, own, 0, 0, 1);
    const CandidateSizes& size = problem.size;
    const Rule rule = {RowMethod::kSgd, 1};
    const State gpu = OnGpu(problem, &rule, State(problem));
    std::vector<double> exact(problem.kernel.size());
    std::vector<float> plain(exact.size());
    problem.ForPlaces([&](int64_t i, int64_t c, float g) {
      for (int64_t d = 0; d < size.width; ++d) {
        const float h = problem.hidden[i * size.width + d];
        exact[c * size.width + d] += static_cast<double>(g) * h;
        plain[c * size.width + d] += g * h;
      }
    });
    double worst = 0, worst_plain = 0;
    for (size_t j = 0; j < exact.size(); ++j) {
      const float w = problem.kernel[j];
      worst = std::max(worst, std::abs(gpu.weights[0][j] - (w - exact[j])));
      worst_plain = std::max(worst_plain, std::abs((w - plain[j]) - (w - exact[j])));
    }
    EXPECT(worst > 0 && worst <= worst_plain);
  }
}

// Adam's correction at each age that the processor has a table for, and where there is none.
TEST(CorrectionsAreThoseOfTheProcessor) {
  for (const auto& betas : {std::pair<double, double>{0.9, 0.999}, {0, 0}, {0.5, 0.75}}) {
    const AdamCorrection correction(betas.first, betas.second);
    const int64_t num_ages = betas.second < 0.9 ? 200 : 40000;
    CandidateProblem problem({num_ages, 1, 1, 0, num_ages}, false, 0, 1, 1);
    std::fill(problem.gradient.begin(), problem.gradient.end(), 0);
    Rule rule = {RowMethod::kAdam, 1};
    rule.beta_1 = betas.first;
    rule.beta_2 = betas.second;
    State state(problem);
    for (int64_t c = 0; c < num_ages; ++c) {
      problem.candidates[c] = c;
      state.ages[0][c] = static_cast<uint32_t>(c);
    }
    EXPECT(OnGpu(problem, &rule, state) == OnProcessor(problem, &rule, state));
  }
}

#ifndef __CUDACC__
TEST(LaunchesThatFail) {
  for (const Rule& rule : kRules) {
    for (bool own : {false, true}) {
      const CandidateProblem problem({9, 7, 4, 2, 8}, own, 0.2, 1, 9);
      const State before(problem);
      const auto run = [&] {
        gpu::Error error;
        const State after = OnGpu(problem, &rule, before, &error);
        return test::Outcome{error, after.HasRowsOf(before)};
      };
      test::FailEachLaunch(run, rule.method != RowMethod::kAdam);
    }
  }
}
#endif

}  // namespace
}  // namespace tfx::core
