// SPDX-License-Identifier: Apache-2.0
//
// The GPU's factored layer against the naive one, and beside that of the processor.

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

// The state of a layer on the device.
template <typename T>
struct LayerOnDevice {
  explicit LayerOnDevice(Layer<T>* host)
      : host(host),
        v(host->v),
        u(host->u),
        p(host->p),
        gram(host->gram),
        shift(host->shift),
        row_sum(host->row_sum),
        transitions(host->transitions),
        row_slot(host->row_slot),
        slot_rows(host->slot_rows),
        current_slot(std::vector<int64_t>{host->current_slot}) {}

  FactoredState<T> State() const {
    FactoredState<T> state = host->State();
    state.v = v.data();
    state.u = u.data();
    state.u_inverse_transpose = p.data();
    state.gram = gram.data();
    state.shift = shift.data();
    state.row_sum = row_sum.data();
    state.transitions = transitions.data();
    state.row_slot = row_slot.data();
    state.slot_rows = slot_rows.data();
    state.current_slot = current_slot.data();
    return state;
  }

  void CopyToHost() const {
    host->v = v.Values();
    host->u = u.Values();
    host->p = p.Values();
    host->gram = gram.Values();
    host->shift = shift.Values();
    host->row_sum = row_sum.Values();
    host->transitions = transitions.Values();
    host->row_slot = row_slot.Values();
    host->slot_rows = slot_rows.Values();
    host->current_slot = current_slot.Values()[0];
  }

  Layer<T>* host;
  const DeviceArray<T> v, u, p, gram, shift, row_sum, transitions;
  const DeviceArray<uint8_t> row_slot;
  const DeviceArray<int64_t> slot_rows, current_slot;
};

// Statistics and a step on the GPU: as Factored.
template <typename T>
struct FactoredOnGpu {
  FactoredOnGpu(const Shape& shape, const Matrix& weights) : layer(shape, weights) {}

  // Returns whether the step diverges; `refusal` is what is refused.
  bool Step(const Batch<T>& b, double weight_decay, double max_condition, bool update) {
    const auto [classes, width, batch, num_labels] = b.shape;
    const LayerOnDevice<T> device(&layer);
    const DeviceArray<T> h(b.hidden), g_target(b.g_target), g_squares(b.g_squares), g_sum(b.g_sum);
    const DeviceArray<int64_t> labels(b.labels);
    const DeviceArray<T> a(batch * num_labels), q(batch), s(batch), gram_hidden(batch * width),
        u_hidden(batch * width), gradient(batch * width);
    const FactoredBatch<T> view = {h.data(), labels.data(), batch, num_labels};
    const DeviceArray<double> scratch(
        gpu::FactoredStatisticsScratchBytes(device.State(), view) / sizeof(double) + 1);
    error = gpu::FactoredStatistics<T>(
        nullptr, device.State(), view, update, scratch.data(),
        {a.data(), q.data(), s.data(), gram_hidden.data(), u_hidden.data()});
    if (HasFailed(device)) return false;
    targets = a.Values();
    squares = q.Values();
    sums = s.Values();
    if (update) device.CopyToHost();  // with rows in the current coordinates

    const DeviceArray<T> rates(std::vector<T>{b.learning_rate, static_cast<T>(weight_decay)});
    const gpu::FactoredStepArguments<T> step = {
        device.State(),
        view,
        {gram_hidden.data(), u_hidden.data(), g_target.data(), g_squares.data(), g_sum.data()},
        rates.data(),
        rates.data() + 1,
        max_condition};
    const DeviceArray<double> memory(gpu::FactoredUpdateScratchBytes(step) / sizeof(double) + 1);
    error = gpu::BeginFactoredUpdate(nullptr, step, update, memory.data(), gradient.data());
    if (HasFailed(device)) return false;
    hidden_gradient = gradient.Values();
    verdict = Verdict(memory);
    if (verdict.Refusal() != FactoredRefusal::kNone || !update) return false;
    const FactoredOutcome outcome = gpu::OutcomeOf(verdict);
    lambda_max = outcome.lambda_max;
    if (outcome.diverges) return true;
    error = gpu::EndFactoredUpdate(nullptr, step, verdict, memory.data());
    if (!HasFailed(device)) device.CopyToHost();
    return false;
  }

  // The state is then that of the device.
  bool HasFailed(const LayerOnDevice<T>& device) const {
    EXPECT(may_fail || error.ok());
    if (!error.ok()) device.CopyToHost();
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
  double lambda_max = 0;
  std::vector<T> targets, squares, sums, hidden_gradient;
};

template <typename T>
void ExpectSame(const FactoredOnGpu<T>& factored, const Naive& naive, const Shape& shape) {
  EXPECT(factored.verdict.Refusal() == FactoredRefusal::kNone);
  EXPECT(Distance(factored.targets, naive.targets, naive.LogitScale(shape)) < kTolerance<T>);
  EXPECT(Distance(factored.squares, naive.squares) < kTolerance<T>);
  EXPECT(Distance(factored.sums, naive.sums) < kTolerance<T>);
  EXPECT(Distance(factored.hidden_gradient, naive.hidden_gradient) < kTolerance<T>);
  EXPECT(Distance(factored.layer.Weights(), naive.weights) < kTolerance<T>);
  const Layer<double> want(shape, naive.weights);
  EXPECT(Distance(factored.layer.gram, want.gram) < kTolerance<T>);
  EXPECT(Distance(factored.layer.row_sum, want.row_sum) < kTolerance<T>);
  const auto& q = factored.layer.gram;
  for (int64_t i = 0; i < shape.width; ++i) {
    for (int64_t j = 0; j < i; ++j) EXPECT(q[i * shape.width + j] == q[j * shape.width + i]);
  }
  ExpectSlotsAreCounted(factored.layer);
}

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
    EXPECT(!factored.Step(batch, decay, max_condition, true));
    on_processor.Step(batch, decay, max_condition, true);
    naive.Step(batch, decay);
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
void WholeNumbers() {
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
    EXPECT(!factored.Step(batch, 0.0, kMaxCondition, true));
    naive.Step(batch, 0.0);
    EXPECT(Distance(factored.targets, naive.targets) == 0);
    EXPECT(Distance(factored.squares, naive.squares) == 0);
    EXPECT(Distance(factored.hidden_gradient, naive.hidden_gradient) == 0);
    EXPECT(Distance(factored.layer.Weights(), naive.weights) == 0);
    EXPECT(Distance(factored.layer.gram, Layer<double>(shape, naive.weights).gram) == 0);
  }
}

void RunsAreTheSameToTheBit() {
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

void DivergingStepsAreRefused() {
  for (const Shape& shape : {Shape{40, 12, 5, 2}, Shape{40, 12, 30, 1}}) {
    for (Signs signs : {Signs::kPositive, Signs::kMixed}) {
      std::mt19937 random(2);
      FactoredOnGpu<double> factored(shape, RandomWeights(shape, random));
      const Batch<double> batch(shape, signs, 2.01, random);
      const Layer<double> before = factored.layer;
      EXPECT(factored.Step(batch, 0.0, kMaxCondition, true));
      EXPECT(std::abs(2 * batch.learning_rate * factored.lambda_max - 2.01) < 1e-3);
      EXPECT(factored.layer == before);
    }
  }
}

void WithoutUpdateTheStateStays() {
  const Shape shape = {40, 12, 5, 2};
  std::mt19937 random(3);
  Naive naive;
  naive.weights = RandomWeights(shape, random);
  FactoredOnGpu<double> factored(shape, naive.weights);
  const Batch<double> first(shape, Signs::kPositive, 1.5, random);
  factored.Step(first, 0.0, kMaxCondition, true);  // leaves stale rows behind
  naive.Step(first, 0.0);
  const Layer<double> before = factored.layer;
  const Batch<double> batch(shape, Signs::kPositive, 0.5, random);
  EXPECT(!factored.Step(batch, 0.0, kMaxCondition, false));
  EXPECT(factored.layer == before);
  const Matrix weights = naive.weights;
  naive.Step(batch, 0.0);
  naive.weights = weights;
  ExpectSame(factored, naive, shape);
}

// What `spoil` makes of a batch, a layer and a decay is refused, with its position.
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

void WhatIsWrongIsRefused() {
  using B = Batch<float>;
  using L = Layer<float>;
  using R = FactoredRefusal;
  IsRefused(R::kCurrentSlot, 0, [](B&, L& l, double&) { l.current_slot = 8; });
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
void LaunchesThatFail() {
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

}  // namespace
}  // namespace tfx::core

int main() {
  namespace core = tfx::core;
  core::OverShapes<float>();
  core::OverShapes<double>();
  core::LargeSteps<float>();
  core::Anchors<float>();
  EXPECT(core::errors_of_gpu < core::errors_of_processor);
  core::WholeNumbers();
  core::RunsAreTheSameToTheBit();
  core::DivergingStepsAreRefused();
  core::WithoutUpdateTheStateStays();
  core::WhatIsWrongIsRefused();
#ifndef __CUDACC__
  core::LaunchesThatFail();
#endif
  return tfx::test::Result();
}
