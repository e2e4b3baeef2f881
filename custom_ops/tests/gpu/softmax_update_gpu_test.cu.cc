// SPDX-License-Identifier: Apache-2.0
//
// The GPU's backward step over all classes against its definition, and against the processor's.

#include <cmath>
#include <cstdint>
#include <vector>

#include "core/gpu/softmax_update.h"
#include "core/softmax_update.h"
#include "tests/bfloat16.h"
#include "tests/expect.h"
#include "tests/gpu/device_array.h"
#include "tests/gpu/failing_launches.h"
#include "tests/softmax_update_problem.h"
#include "tests/workers.h"

namespace tfx::core {
namespace {

using gpu::Precision;
using test::DeviceArray;
using test::ExpectClose;
using Problem = test::SoftmaxUpdateProblem;

constexpr double kBeta1 = 0.9, kBeta2 = 0.99, kDecay = 0.1;
constexpr float kRate = 0.5f, kClip = 0.3f;

// W and b with all their slots, whatever a method has of them.
struct State {
  explicit State(const Problem& p)
      : kernel(p.kernel),
        bias(p.bias),
        kernel_slots{std::vector<float>(p.kernel.size(), 0.25f),
                     std::vector<float>(p.kernel.size(), 0.5f)},
        bias_slots{std::vector<float>(p.bias.size(), 0.25f),
                   std::vector<float>(p.bias.size(), 0.5f)},
        ages{std::vector<uint32_t>(p.bias.size()), std::vector<uint32_t>(p.bias.size(), 7)},
        hidden_gradient(p.hidden.size()) {
    ages[0][0] = 0x7fffffff;
  }

  std::vector<float> kernel, bias, kernel_slots[2], bias_slots[2];
  std::vector<uint32_t> ages[2];  // of W, of b
  std::vector<float> hidden_gradient;
};

struct Options {
  RowMethod method = RowMethod::kSgd;
  bool is_plain = true;  // rate 1, neither decay nor clip norm
  bool has_mean = false, has_bias = true, updates = true;
  Precision precision = Precision::kFloat32;
};

RowStep StepOf(const Options& o) {
  RowStep step = {};
  step.method = o.method;
  step.learning_rate = o.is_plain ? 1 : kRate;
  step.kept = o.is_plain ? 1 : static_cast<float>(1 - kRate * kDecay);
  step.clip_norm = o.is_plain ? INFINITY : kClip;
  step.momentum = static_cast<float>(kBeta1);
  step.beta_2 = static_cast<float>(kBeta2);
  step.rest_1 = static_cast<float>(1 - kBeta1);
  step.rest_2 = static_cast<float>(1 - kBeta2);
  step.epsilon = 1e-3f;
  return step;
}

// Rows of arrays, with pointers from `of`.
template <typename Of, typename Array, typename Ages>
WeightRows RowsOf(const Options& o, int64_t width, Array& weights, Array* slots, Ages& ages,
                  Of& of) {
  WeightRows rows = {of(weights), false, width, {nullptr, nullptr}, nullptr};
  const bool is_adam = o.method == RowMethod::kAdam;
  if (o.method != RowMethod::kSgd) rows.slots[0] = of(slots[0]);
  if (is_adam) rows.slots[1] = of(slots[1]);
  if (is_adam) rows.ages = of(ages);
  return rows;
}

State OnProcessor(const Problem& p, const Options& o) {
  State s(p);
  const auto of = [](auto& array) { return array.data(); };
  const Workers workers(InstructionSet::kBaseline);
  const AdamCorrection correction(kBeta1, kBeta2);
  const RowUpdater updater(StepOf(o), &correction, workers.execution.rows);
  const LayerRows rows = {
      RowsOf(o, p.width, s.kernel, s.kernel_slots, s.ages[0], of),
      o.has_bias ? RowsOf(o, 1, s.bias, s.bias_slots, s.ages[1], of) : WeightRows{}};
  const bool rounds = o.precision == Precision::kBfloat16;
  SoftmaxUpdate({s.kernel.data(), rows.bias.weights, false, p.num_classes, p.width}, rows,
                p.Batch(of, o.has_mean, rounds), o.updates ? &updater : nullptr, workers.execution,
                s.hidden_gradient.data());
  return s;
}

// Expects success, or the error in `got` if given.
State OnGpu(const Problem& p, const Options& o, gpu::Error* got = nullptr) {
  State s(p);
  test::DeviceCopies of;
  const std::vector<float> rate = {StepOf(o).learning_rate};
  gpu::SoftmaxUpdateInputs in = {};
  in.rows.kernel = RowsOf(o, p.width, s.kernel, s.kernel_slots, s.ages[0], of);
  if (o.has_bias) in.rows.bias = RowsOf(o, 1, s.bias, s.bias_slots, s.ages[1], of);
  in.weights = {in.rows.kernel.weights, in.rows.bias.weights, false, p.num_classes, p.width};
  in.batch = p.Batch(of, o.has_mean, false);
  in.rule = {StepOf(o), of(rate), o.is_plain ? 0 : kDecay, kBeta1, kBeta2};
  in.rule.step.learning_rate = in.rule.step.kept = NAN;  // which are not looked at
  in.updates = o.updates;
  in.precision = o.precision;
  in.numbers_at_a_time = 1;  // so that there are several blocks
  const DeviceArray<double> scratch(gpu::SoftmaxUpdateScratchBytes(in) / sizeof(double) + 1);
  const gpu::Error error = gpu::SoftmaxUpdate(nullptr, in, scratch.data(), of(s.hidden_gradient));
  EXPECT(got != nullptr || error.ok());
  if (got != nullptr) *got = error;
  of.Back(&s.kernel);
  of.Back(&s.bias);
  of.Back(&s.hidden_gradient);
  for (int i = 0; i < 2; ++i) {
    of.Back(&s.kernel_slots[i]);
    of.Back(&s.bias_slots[i]);
    of.Back(&s.ages[i]);
  }
  return s;
}

void ExpectSame(const State& a, const State& b, float error) {
  ExpectClose(a.kernel, b.kernel, error);
  ExpectClose(a.bias, b.bias, error);
  ExpectClose(a.hidden_gradient, b.hidden_gradient, error);
  for (int i = 0; i < 2; ++i) {
    ExpectClose(a.kernel_slots[i], b.kernel_slots[i], error);
    ExpectClose(a.bias_slots[i], b.bias_slots[i], error);
    EXPECT(a.ages[i] == b.ages[i]);
  }
}

void AgreesWithTheDefinition(const Problem& p) {
  for (const bool has_mean : {false, true}) {
    const auto expected = p.Expected(has_mean);
    Options options;
    options.has_mean = has_mean;
    for (const auto& [precision, error] :
         {std::pair(Precision::kFloat32, 1e-5f), std::pair(Precision::kTf32, 4e-3f),
          std::pair(Precision::kBfloat16, 2e-2f)}) {
      options.precision = precision;
      const State gpu = OnGpu(p, options);
      ExpectClose(gpu.kernel, expected.kernel, error);
      ExpectClose(gpu.bias, expected.bias, error);
      ExpectClose(gpu.hidden_gradient, expected.hidden_gradient, error);
    }
  }
}

// Each method, with slots, ages at their end, weight decay and clipped gradients.
void AgreesWithTheProcessor(const Problem& p) {
  for (RowMethod method : {RowMethod::kSgd, RowMethod::kMomentum, RowMethod::kNesterov,
                           RowMethod::kAdagrad, RowMethod::kAdam}) {
    for (const bool has_bias : {false, true}) {
      Options options;
      options.method = method;
      options.is_plain = false;
      options.has_bias = has_bias;
      ExpectSame(OnGpu(p, options), OnProcessor(p, options), 1e-5f);
      options.precision = Precision::kBfloat16;
      ExpectSame(OnGpu(p, options), OnProcessor(p, options), 1e-3f);
      options.updates = false;
      const State only_gradient = OnGpu(p, options);
      EXPECT(only_gradient.kernel == p.kernel && only_gradient.bias == p.bias);
      ExpectClose(only_gradient.hidden_gradient, OnProcessor(p, options).hidden_gradient, 1e-3f);
    }
  }
}

// Labels without rows, and a repeated label.
TEST(OddLabels) {
  Problem p(2, 3, 10, 3);
  p.labels = {7, 7, -1, 2, -1, 7};
  const State expected = OnProcessor(p, {});
  ExpectSame(OnGpu(p, {}), expected, 1e-6f);
  p.labels = {7, 7, 10, 2, 1LL << 40, 7};
  ExpectSame(OnGpu(p, {}), expected, 1e-6f);
  p.labels = {7, 7, -(1LL << 40), 2, -9, 7};
  ExpectSame(OnGpu(p, {}), expected, 1e-6f);
}

// Whole numbers, and probabilities that are 1 or 0: each sum is exact.
TEST(WholeNumbersToTheBit) {
  Problem p(5, 4, 9000, 2);
  for (auto* array : {&p.hidden, &p.kernel, &p.bias, &p.target_gradient, &p.log_z_gradient}) {
    for (float& x : *array) x = std::round(3 * x);
  }
  for (size_t i = 0; i < p.logsumexp.size(); ++i) p.logsumexp[i] = i % 2 == 0 ? 1e4f : -1e4f;
  for (Precision precision : {Precision::kFloat32, Precision::kTf32, Precision::kBfloat16}) {
    Options options;
    options.precision = precision;
    const State gpu = OnGpu(p, options), processor = OnProcessor(p, options);
    EXPECT(gpu.kernel == processor.kernel);
    EXPECT(gpu.bias == processor.bias);
    EXPECT(gpu.hidden_gradient == processor.hidden_gradient);
  }
}

// W in bfloat16, changed to the nearest.
TEST(Bfloat16Weights) {
  Problem p(6, 5, 4200, 1);
  const std::vector<uint16_t> kernel = test::Halves(p.kernel), bias = test::Halves(p.bias);
  p.kernel = test::Widened(kernel);
  p.bias = test::Widened(bias);
  for (Precision precision : {Precision::kFloat32, Precision::kBfloat16}) {
    Options options;
    options.precision = precision;
    const State floats = OnGpu(p, options);
    test::DeviceCopies of;
    const std::vector<float> rate = {1};
    gpu::SoftmaxUpdateInputs in = {};
    in.rows = {{of(kernel), true, p.width, {nullptr, nullptr}, nullptr},
               {of(bias), true, 1, {nullptr, nullptr}, nullptr}};
    in.weights = {of(kernel), of(bias), true, p.num_classes, p.width};
    in.batch = p.Batch(of, false, false);
    in.rule = {StepOf(options), of(rate), 0, 0, 0};
    in.updates = true;
    in.precision = precision;
    in.numbers_at_a_time = 1;
    const DeviceArray<double> scratch(gpu::SoftmaxUpdateScratchBytes(in) / sizeof(double) + 1);
    std::vector<float> gradient(p.hidden.size());
    EXPECT(gpu::SoftmaxUpdate(nullptr, in, scratch.data(), of(gradient)).ok());
    of.Back(&gradient);
    EXPECT(gradient == floats.hidden_gradient);
    const auto is_nearest = [](const std::vector<float>& halves,
                               const std::vector<float>& numbers) {
      for (size_t i = 0; i < numbers.size(); ++i) {
        if (std::abs(halves[i] - numbers[i]) > std::abs(numbers[i]) / 256) return false;
      }
      return true;
    };
    EXPECT(is_nearest(test::Widened(of.Now(kernel)), floats.kernel));
    EXPECT(is_nearest(test::Widened(of.Now(bias)), floats.bias));
  }
}

#ifndef __CUDACC__
TEST(LaunchesThatFail) {
  Options options;
  options.is_plain = false;
  const Problem problem(1, 2, 4100, 1);  // two blocks
  const auto run = [&] {
    const State before(problem);
    gpu::Error error;
    const State after = OnGpu(problem, options, &error);
    return test::Outcome{error, after.kernel == before.kernel && after.bias == before.bias &&
                                    after.ages[0] == before.ages[0]};
  };
  test::FailEachLaunch(run, false);
}
#endif

TEST(All) {
  AgreesWithTheDefinition(Problem(1, 1, 2, 1));
  AgreesWithTheDefinition(Problem(33, 65, 1009, 2));
  AgreesWithTheDefinition(Problem(3, 7, 8195, 3));
  AgreesWithTheDefinition(Problem(40, 17, 500, 0));
  AgreesWithTheDefinition(Problem(10, 300, 123, 5));
  AgreesWithTheDefinition(Problem(0, 5, 10, 2));
  AgreesWithTheDefinition(Problem(4, 0, 10, 2));
  AgreesWithTheProcessor(Problem(3, 5, 70, 2));
  AgreesWithTheProcessor(Problem(0, 5, 10, 2));
}

}  // namespace
}  // namespace tfx::core
