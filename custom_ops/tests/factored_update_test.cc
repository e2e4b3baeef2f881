// SPDX-License-Identifier: Apache-2.0
//
// The factored layer against the naive one: all logits, all of W, in double.

#include "core/factored_update.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "core/factored_coordinates.h"
#include "tests/expect.h"
#include "tests/factored_layer.h"

namespace tfx::core {

template <typename T>
void ExpectSame(Factored<T>& factored, const Naive& naive, const Shape& shape) {
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

template <typename T>
void StepsAreThoseOfTheNaiveLayer(const Shape& shape, Signs signs, double step, double decay,
                                  InstructionSet set = BestSet(),
                                  double max_condition = kMaxCondition) {
  std::mt19937 random(1);
  Naive naive;
  naive.weights = RandomWeights(shape, random);
  Factored<T> factored(shape, naive.weights, set);
  for (int i = 0; i < 12; ++i) {
    const Batch<T> batch(shape, signs, step, random);
    EXPECT(!factored.Step(batch, decay, max_condition, true).diverges);
    naive.Step(batch, decay);
    ExpectSame(factored, naive, shape);
  }
}

template <typename T>
void OverShapes() {
  const Shape shapes[] = {{40, 7, 3, 2},   {30, 16, 16, 1}, {30, 17, 40, 3}, {25, 40, 20, 0},
                          {20, 1, 1, 1},   {20, 1, 6, 2},   {20, 33, 1, 1},  {1, 5, 4, 1},
                          {50, 70, 65, 4}, {50, 20, 0, 2},  {10, 33, 100, 9}};
  for (const Shape& shape : shapes) {
    for (Signs signs : {Signs::kPositive, Signs::kMixed, Signs::kZero}) {
      StepsAreThoseOfTheNaiveLayer<T>(shape, signs, 0.5, 0.0);
      StepsAreThoseOfTheNaiveLayer<T>(shape, signs, 0.5, 0.3);
    }
  }
}

// From 2 eta lambda_max = 1, I - 2 eta H^T G H is not positive definite; up to 2, naive SGD is
// stable. Each step ends in a new anchor: there are more than slots.
template <typename T>
void LargeSteps() {
  for (double step : {0.97, 1.0, 1.5, 1.95}) {
    for (const Shape& shape : {Shape{40, 12, 5, 2}, Shape{40, 12, 30, 1}}) {
      StepsAreThoseOfTheNaiveLayer<T>(shape, Signs::kPositive, step, 0.0);
      StepsAreThoseOfTheNaiveLayer<T>(shape, Signs::kMixed, step, 0.1);
    }
  }
}

template <typename T>
void EveryInstructionSet() {
  for (InstructionSet set : kInstructionSets) {
    if (!Supports(set)) continue;
    StepsAreThoseOfTheNaiveLayer<T>({40, 37, 20, 2}, Signs::kMixed, 0.8, 0.1, set);
    StepsAreThoseOfTheNaiveLayer<T>({40, 19, 37, 2}, Signs::kMixed, 0.8, 0.1, set);
  }
}

// A new anchor at every step, and none at all.
template <typename T>
void Anchors() {
  StepsAreThoseOfTheNaiveLayer<T>({40, 12, 5, 2}, Signs::kPositive, 0.5, 0.1, BestSet(), 1.0);
  StepsAreThoseOfTheNaiveLayer<T>({40, 12, 5, 2}, Signs::kPositive, 0.2, 0.0, BestSet(),
                                  std::numeric_limits<double>::infinity());
}

void ThreadsDontMatter() {
  for (const Shape& shape : {Shape{60, 50, 30, 2}, Shape{60, 30, 50, 2}}) {
    std::mt19937 random(1);
    const Matrix weights = RandomWeights(shape, random);
    Factored<float> one(shape, weights, BestSet(), 1), three(shape, weights, BestSet(), 3);
    for (int i = 0; i < 12; ++i) {
      const Batch<float> batch(shape, Signs::kMixed, 0.9, random);
      one.Step(batch, 0.1, 5, true);
      three.Step(batch, 0.1, 5, true);
      EXPECT(one.hidden_gradient == three.hidden_gradient);
      EXPECT(one.layer == three.layer);
    }
  }
}

void DivergingStepsAreRefused() {
  for (const Shape& shape : {Shape{40, 12, 5, 2}, Shape{40, 12, 30, 1}}) {
    for (Signs signs : {Signs::kPositive, Signs::kMixed}) {
      std::mt19937 random(2);
      Factored<double> factored(shape, RandomWeights(shape, random));
      const Batch<double> batch(shape, signs, 2.01, random);
      const Layer<double> before = factored.layer;
      const FactoredOutcome outcome = factored.Step(batch, 0.0, kMaxCondition, true);
      EXPECT(outcome.diverges);
      EXPECT(std::abs(2 * batch.learning_rate * outcome.lambda_max - 2.01) < 1e-3);
      EXPECT(factored.layer == before);
    }
  }
}

void WithoutUpdateTheStateStays() {
  const Shape shape = {40, 12, 5, 2};
  std::mt19937 random(3);
  Naive naive;
  naive.weights = RandomWeights(shape, random);
  Factored<double> factored(shape, naive.weights);
  const Batch<double> first(shape, Signs::kPositive, 1.5, random);
  factored.Step(first, 0.0, kMaxCondition, true);  // leaves stale rows behind
  naive.Step(first, 0.0);
  const Layer<double> before = factored.layer;
  const Batch<double> batch(shape, Signs::kPositive, 0.5, random);
  EXPECT(!factored.Step(batch, 0.0, kMaxCondition, false).diverges);
  EXPECT(factored.layer == before);
  const Matrix weights = naive.weights;
  naive.Step(batch, 0.0);
  naive.weights = weights;
  ExpectSame(factored, naive, shape);
}

void CoordinatesDontChangeTheWeights() {
  const Shape shape = {200, 12, 20, 2};
  std::mt19937 random(4);
  Factored<double> factored(shape, RandomWeights(shape, random));
  for (int i = 0; i < 20; ++i) {
    factored.Step(Batch<double>(shape, Signs::kPositive, 0.5, random), 0.01, kMaxCondition, true);
    const Matrix weights = factored.layer.Weights();
    Reanchor(factored.layer.State(), factored.execution);
    EXPECT(Distance(factored.layer.Weights(), weights) < 1e-12);
    EXPECT(factored.layer.u == factored.layer.p);
    ExpectSlotsAreCounted(factored.layer);
    if (i % 6 < 5) continue;
    Settle(factored.layer.State(), factored.execution);
    EXPECT(Distance(factored.layer.Weights(), weights) < 1e-12);
    EXPECT(factored.layer.slot_rows[factored.layer.current_slot] == shape.classes);
    ExpectSlotsAreCounted(factored.layer);
    const Layer<double> settled = factored.layer;
    Settle(factored.layer.State(), factored.execution);
    EXPECT(factored.layer == settled);
  }
}

}  // namespace tfx::core

int main() {
  using namespace tfx::core;
  OverShapes<double>();
  OverShapes<float>();
  LargeSteps<double>();
  LargeSteps<float>();
  EveryInstructionSet<double>();
  EveryInstructionSet<float>();
  Anchors<double>();
  Anchors<float>();
  ThreadsDontMatter();
  DivergingStepsAreRefused();
  WithoutUpdateTheStateStays();
  CoordinatesDontChangeTheWeights();
  return tfx::test::Result();
}
