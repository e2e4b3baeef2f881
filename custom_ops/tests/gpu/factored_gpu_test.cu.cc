// SPDX-License-Identifier: Apache-2.0
//
// Compares the factored layer on a GPU with the naive layer, and with the processor's.

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "core/gpu/factored_statistics.h"
#include "core/gpu/factored_update.h"
#include "tests/expect.h"
#include "tests/factored_layer.h"
#include "tests/gpu/device_array.h"
#include "tests/gpu/failing_launches.h"

namespace tfx::core {
namespace {

using gpu::FactoredRefusal;
using test::DeviceArray;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Statistics and a step on the GPU: as Factored.
template <typename T>
struct FactoredOnGpu {
  FactoredOnGpu(const Shape& shape, const Matrix& weights) : layer(shape, weights) {}

  // `verdict` has the faults.
  FactoredOutcome Step(const Batch<T>& b, double weight_decay, double max_condition, bool update) {
    const auto [classes, width, batch, num_labels] = b.shape;
    test::DeviceCopies of;
    const auto state = [&] { return layer.State(of); };
    const DeviceArray<T> a(batch * num_labels), q(batch), s(batch), gram_hidden(batch * width),
        u_hidden(batch * width), gradient(batch * width);
    const FactoredBatch<T> view = {of(b.hidden), of(b.labels), batch, num_labels};
    const DeviceArray<double> scratch(
        gpu::FactoredStatisticsScratchBytes(state(), view) / sizeof(double) + 1);
    error = gpu::FactoredStatistics<T>(
        nullptr, state(), view, update, scratch.data(),
        {a.data(), q.data(), s.data(), gram_hidden.data(), u_hidden.data()});
    if (HasFailed(of)) return {false, 0};
    targets = a.Values();
    squares = q.Values();
    sums = s.Values();
    if (update) CopyToHost(of);  // with rows in the current coordinates

    const std::vector<T> rates = {b.learning_rate, static_cast<T>(weight_decay)};
    const gpu::FactoredStepArguments<T> step = {
        state(),
        view,
        {gram_hidden.data(), u_hidden.data(), of(b.g_target), of(b.g_squares), of(b.g_sum)},
        of(rates),
        of(rates) + 1,
        max_condition};
    const DeviceArray<double> memory(gpu::FactoredUpdateScratchBytes(step) / sizeof(double) + 1);
    error = gpu::BeginFactoredUpdate(nullptr, step, update, memory.data(), gradient.data());
    if (HasFailed(of)) return {false, 0};
    hidden_gradient = gradient.Values();
    verdict = Verdict(memory);
    if (verdict.Refusal() != FactoredRefusal::kNone || !update) return {false, 0};
    const FactoredOutcome outcome = gpu::OutcomeOf(verdict);
    if (outcome.diverges) return outcome;
    error = gpu::EndFactoredUpdate(nullptr, step, verdict, memory.data());
    if (!HasFailed(of)) CopyToHost(of);
    return outcome;
  }

  void CopyToHost(const test::DeviceCopies& of) {
    for (auto* array : {&layer.v, &layer.u, &layer.p, &layer.gram, &layer.shift, &layer.row_sum,
                        &layer.transitions}) {
      of.Back(array);
    }
    of.Back(&layer.row_slot);
    of.Back(&layer.slot_rows);
    of.Back(&layer.current_slot);
  }

  // The state is then read from the device.
  bool HasFailed(const test::DeviceCopies& of) {
    EXPECT(may_fail || error.ok());
    if (!error.ok()) CopyToHost(of);
    return !error.ok();
  }

  static gpu::FactoredVerdict Verdict(const DeviceArray<double>& memory) {
    const auto* at = gpu::VerdictIn(memory.data());
    gpu::FactoredVerdict copy;
#ifdef __CUDACC__
    EXPECT(cudaMemcpy(&copy, at, sizeof copy, cudaMemcpyDeviceToHost) == cudaSuccess);
#else
    copy = *at;
#endif
    return copy;
  }

  Layer<T> layer;
  bool may_fail = false;
  gpu::Error error;
  gpu::FactoredVerdict verdict;
  std::vector<T> targets, squares, sums, hidden_gradient;
};

// The sum of the errors of W over all that was tried in float, on the GPU and on the processor.
double errors_of_gpu = 0, errors_of_processor = 0;

template <typename T>
void StepsAreThoseOfTheNaiveLayer(const Shape& shape, Signs signs, double step, double decay,
                                  double max_condition = kMaxCondition, int num_steps = 3) {
  std::mt19937 random(1);
  Naive naive;
  naive.weights = RandomWeights(shape, random);
  FactoredOnGpu<T> factored(shape, naive.weights);
  Factored<T> on_processor(shape, naive.weights);
  for (int i = 0; i < num_steps; ++i) {
    const Batch<T> batch(shape, signs, step, random);
    EXPECT(!factored.Step(batch, decay, max_condition, true).diverges);
    on_processor.Step(batch, decay, max_condition, true);
    naive.Step(batch, decay);
    EXPECT(factored.verdict.Refusal() == FactoredRefusal::kNone);
    ExpectSame(factored, naive, shape);
    if (!std::is_same_v<T, float>) continue;
    errors_of_gpu += Distance(factored.layer.Weights(), naive.weights);
    errors_of_processor += Distance(on_processor.layer.Weights(), naive.weights);
  }
}

template <typename T>
void OverShapes() {
  const Shape shapes[] = {{40, 7, 5, 2},  {20, 1, 1, 1},  {20, 1, 5, 2},   {30, 60, 1, 1},
                          {30, 60, 5, 3}, {25, 7, 40, 0}, {50, 60, 65, 2}, {50, 70, 65, 4},
                          {1, 5, 4, 1},   {50, 20, 0, 2}};
  for (const Shape& shape : shapes) {
    StepsAreThoseOfTheNaiveLayer<T>(shape, Signs::kMixed, 0.5, 0.3);
  }
  StepsAreThoseOfTheNaiveLayer<T>({40, 7, 5, 2}, Signs::kPositive, 0.5, 0.0);
  StepsAreThoseOfTheNaiveLayer<T>({25, 7, 40, 1}, Signs::kPositive, 0.5, 0.0);
  StepsAreThoseOfTheNaiveLayer<T>({40, 7, 5, 2}, Signs::kZero, 0.5, 0.0);
}

// Each step ends in a new anchor; there are more steps than slots.
template <typename T>
void LargeSteps() {
  StepsAreThoseOfTheNaiveLayer<T>({40, 12, 5, 2}, Signs::kPositive, 1.0, 0.0, kMaxCondition, 10);
  StepsAreThoseOfTheNaiveLayer<T>({40, 12, 5, 2}, Signs::kMixed, 1.95, 0.1, kMaxCondition, 3);
  StepsAreThoseOfTheNaiveLayer<T>({300, 7, 30, 1}, Signs::kMixed, 1.5, 0.1, kMaxCondition, 3);
}

// A new anchor after each step that has an inverse, and none at all.
template <typename T>
void Anchors() {
  StepsAreThoseOfTheNaiveLayer<T>({40, 12, 5, 2}, Signs::kPositive, 0.5, 0.1, 1.0, 10);
  StepsAreThoseOfTheNaiveLayer<T>({40, 12, 5, 2}, Signs::kPositive, 0.2, 0.0, kInfinity, 6);
}

// Without g_q, M is I: with whole numbers and halves all is exact.
TEST(WholeNumbers) {
  const Shape shape = {30, 7, 5, 3};
  std::mt19937 random(4);
  Naive naive;
  naive.weights.resize(shape.classes * shape.width);
  const auto whole = [&] { return static_cast<float>(random() % 7) - 3; };
  for (double& w : naive.weights) w = whole();
  FactoredOnGpu<float> factored(shape, naive.weights);
  for (int i = 0; i < 3; ++i) {
    Batch<float> batch(shape, Signs::kZero, 0.5, random);
    for (auto* numbers : {&batch.hidden, &batch.g_target, &batch.g_sum}) {
      for (float& x : *numbers) x = whole();
    }
    batch.learning_rate = 0.5;
    EXPECT(!factored.Step(batch, 0.0, kMaxCondition, true).diverges);
    naive.Step(batch, 0.0);
    EXPECT(Distance(factored.targets, naive.targets) == 0);
    EXPECT(Distance(factored.squares, naive.squares) == 0);
    EXPECT(Distance(factored.hidden_gradient, naive.hidden_gradient) == 0);
    EXPECT(Distance(factored.layer.Weights(), naive.weights) == 0);
    EXPECT(Distance(factored.layer.gram, Layer<double>(shape, naive.weights).gram) == 0);
  }
}

TEST(RunsAreTheSameToTheBit) {
  const Shape shape = {40, 12, 20, 3};
  std::mt19937 random(5);
  const Matrix weights = RandomWeights(shape, random);
  FactoredOnGpu<float> one(shape, weights), other(shape, weights);
  for (int i = 0; i < 3; ++i) {
    const Batch<float> batch(shape, Signs::kMixed, 0.9, random);
    one.Step(batch, 0.1, kMaxCondition, true);
    other.Step(batch, 0.1, kMaxCondition, true);
    EXPECT(one.hidden_gradient == other.hidden_gradient);
    EXPECT(one.layer == other.layer);
  }
}

TEST(DivergingSteps) { DivergingStepsAreRefused<FactoredOnGpu>(); }

TEST(OnlyTheGradient) { WithoutUpdateTheStateStays<FactoredOnGpu>(); }

// Expects a fault, with its position, after `spoil` has changed a batch, a layer and a decay.
template <typename Spoil>
void IsRefused(FactoredRefusal what, int64_t position, const Spoil& spoil) {
  const Shape shape = {40, 7, 5, 2};
  std::mt19937 random(6);
  FactoredOnGpu<float> factored(shape, RandomWeights(shape, random));
  Batch<float> batch(shape, Signs::kPositive, 0.5, random);
  for (int64_t& label : batch.labels) label = std::max<int64_t>(label, 0);
  double decay = 0.1;
  spoil(batch, factored.layer, decay);
  const Layer<float> before = factored.layer;
  factored.Step(batch, decay, kMaxCondition, true);
  EXPECT(factored.verdict.Refusal() == what);
  EXPECT(factored.verdict.Position() == position);
  EXPECT(factored.layer.v == before.v && factored.layer.u == before.u);
  EXPECT(factored.layer.gram == before.gram && factored.layer.shift == before.shift);
  EXPECT(factored.layer.row_slot == before.row_slot &&
         factored.layer.slot_rows == before.slot_rows);
}

TEST(WhatIsWrongIsRefused) {
  using B = Batch<float>;
  using L = Layer<float>;
  using R = FactoredRefusal;
  IsRefused(R::kCurrentSlot, 0, [](B&, L& l, double&) { l.current_slot[0] = 8; });
  IsRefused(R::kSlotRows, 3, [](B&, L& l, double&) { l.slot_rows[3] = -1; });
  IsRefused(R::kSumOfSlotRows, 0, [](B&, L& l, double&) { l.slot_rows[0] = 39; });
  IsRefused(R::kHidden, 9, [](B& b, L&, double&) { b.hidden[9] = b.hidden[12] = std::nanf(""); });
  IsRefused(R::kLabels, 4, [](B& b, L&, double&) { b.labels[4] = b.labels[5] = 40; });
  IsRefused(R::kLabels, 1, [](B& b, L&, double&) { b.labels[1] = -2; });
  IsRefused(R::kRowSlot, 7, [](B& b, L& l, double&) { l.row_slot[b.labels[7] = 30] = 8; });
  IsRefused(R::kRowsOfSlot, 7, [](B& b, L& l, double&) { l.row_slot[b.labels[7] = 30] = 5; });
  IsRefused(R::kGTarget, 3, [](B& b, L&, double&) { b.g_target[3] = 1 / 0.f; });
  IsRefused(R::kGSquares, 2, [](B& b, L&, double&) { b.g_squares[2] = std::nanf(""); });
  IsRefused(R::kGSum, 4, [](B& b, L&, double&) { b.g_sum[4] = -1 / 0.f; });
  IsRefused(R::kLearningRate, 0, [](B& b, L&, double&) { b.learning_rate = -1; });
  IsRefused(R::kWeightDecay, 0, [](B& b, L&, double& decay) { decay = 2 / b.learning_rate; });
}

#ifndef __CUDACC__
// What the statistics make of the state, rows in current coordinates, counts as no change: W is as
// it was.
TEST(LaunchesThatFail) {
  const Shape shape = {40, 7, 5, 2};
  const auto run = [&] {
    std::mt19937 random(6);
    const Matrix weights = RandomWeights(shape, random);
    FactoredOnGpu<double> factored(shape, weights);
    factored.may_fail = true;
    const Batch<double> batch(shape, Signs::kPositive, 1.5, random);
    factored.Step(batch, 0, kMaxCondition, true);  // which ends in a new anchor
    return test::Outcome{factored.error, Distance(factored.layer.Weights(), weights) < 1e-12};
  };
  test::FailEachLaunch(run, false);
}
#endif

TEST(All) {
  OverShapes<float>();
  OverShapes<double>();
  LargeSteps<float>();
  Anchors<float>();
  EXPECT(errors_of_gpu < errors_of_processor);
}

}  // namespace
}  // namespace tfx::core
