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
  for (InstructionSet set : InstructionSets()) {
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

TEST(ThreadsDontMatter) {
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

TEST(DivergingSteps) { DivergingStepsAreRefused<Factored>(); }

TEST(OnlyTheGradient) { WithoutUpdateTheStateStays<Factored>(); }

TEST(CoordinatesDontChangeTheWeights) {
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
    EXPECT(factored.layer.slot_rows[factored.layer.current_slot[0]] == shape.classes);
    ExpectSlotsAreCounted(factored.layer);
    const Layer<double> settled = factored.layer;
    Settle(factored.layer.State(), factored.execution);
    EXPECT(factored.layer == settled);
  }
}

TEST(All) {
  OverShapes<double>();
  OverShapes<float>();
  LargeSteps<double>();
  LargeSteps<float>();
  EveryInstructionSet<double>();
  EveryInstructionSet<float>();
  Anchors<double>();
  Anchors<float>();
}

}  // namespace tfx::core
