// SPDX-License-Identifier: Apache-2.0
//
// The factored step in halves, and on shards of a layer.

#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "core/class_shard.h"
#include "core/factored_update.h"
#include "tests/expect.h"
#include "tests/factored_layer.h"

namespace tfx::core {

// The first half, of a shard with every stride-th class; adds to what other shards have found.
template <typename T>
void AddTargetSums(const FactoredState<T>& state, const Batch<T>& batch,
                   const DenseExecution<T>& execution, std::vector<T>* target_sums) {
  std::vector<T> found(batch.hidden.size());
  FactoredTargetSums<T>(state, batch.View(), batch.g_target.data(), execution, found.data());
  target_sums->resize(found.size());
  for (size_t i = 0; i < found.size(); ++i) (*target_sums)[i] += found[i];
}

// One after the other, both halves of a step are the step, to the last bit.
template <typename T>
void HalvesAreTheStep(const Shape& shape, double step, double max_condition) {
  std::mt19937 random(7);
  const Matrix weights = RandomWeights(shape, random);
  Factored<T> whole(shape, weights, BestSet()), halves(shape, weights, BestSet());
  for (int i = 0; i < 8; ++i) {
    const Batch<T> batch(shape, Signs::kMixed, step, random);
    halves.target_sums.clear();
    std::vector<T> sums;
    AddTargetSums(halves.layer.State(), batch, halves.execution, &sums);
    halves.target_sums = sums;
    whole.Step(batch, 1e-3, max_condition, true);
    halves.Step(batch, 1e-3, max_condition, true);
    EXPECT(halves.hidden_gradient == whole.hidden_gradient);
    EXPECT(halves.layer == whole.layer);
  }
}

// Shards that add up what leaves the first half take the step of the whole layer, and stay alike
// but for their rows.
template <typename T>
void ShardsMakeUpTheLayer(const Shape& shape, double step, double max_condition) {
  std::mt19937 random(8);
  const Matrix weights = RandomWeights(shape, random);
  Factored<T> whole(shape, weights), first(shape, weights), second(shape, weights);
  first.layer.Keep(0, 2);
  second.layer.Keep(1, 2);
  for (int i = 0; i < 8; ++i) {
    const Batch<T> batch(shape, Signs::kPositive, step, random);
    std::vector<T> sums;
    for (Factored<T>* shard : {&first, &second}) {
      AddTargetSums(shard->layer.State(), batch, shard->execution, &sums);
    }
    whole.Step(batch, 1e-3, max_condition, true);
    for (Factored<T>* shard : {&first, &second}) {
      shard->Prepare(batch);
      shard->target_sums = sums;
      shard->Update(batch, 1e-3, max_condition, true);
      const Matrix of_shard = shard->layer.Weights(), of_whole = whole.layer.Weights();
      for (size_t at = 0; at < of_shard.size(); ++at) {
        const int64_t row = shard->layer.first + at / shape.width * shard->layer.stride;
        EXPECT(std::abs(of_shard[at] - of_whole[row * shape.width + at % shape.width]) <
               kTolerance<T>);
      }
      ExpectSlotsAreCounted(shard->layer);
    }
    EXPECT(first.hidden_gradient == second.hidden_gradient);
    EXPECT(first.layer.u == second.layer.u && first.layer.p == second.layer.p);
    EXPECT(first.layer.gram == second.layer.gram && first.layer.shift == second.layer.shift);
    EXPECT(first.layer.row_sum == second.layer.row_sum);
  }
}

template <typename T>
void HalvesAndShards() {
  for (const Shape& shape : {Shape{40, 16, 5, 3}, Shape{41, 7, 20, 2}, Shape{40, 16, 6, 0}}) {
    for (double step : {0.3, 1.5}) {
      HalvesAreTheStep<T>(shape, step, kMaxCondition);
      ShardsMakeUpTheLayer<T>(shape, step, kMaxCondition);
    }
  }
}

void RowsAndClassesGoTogether() {
  for (const ClassShard& shard : {ClassShard{0, 1, 9}, ClassShard{2, 3, 4}, ClassShard{5, 7, 0}}) {
    for (int64_t id = -1; id < 40; ++id) {
      int64_t row = -1, below = 0;
      for (int64_t r = 0; r < shard.num_rows; ++r) {
        if (shard.ClassOf(r) == id) row = r;
        below += shard.ClassOf(r) < id;
      }
      EXPECT(shard.RowOf(id) == row);
      EXPECT(shard.RowsBelow(id) == below);
    }
  }
}

}  // namespace tfx::core

int main() {
  tfx::core::RowsAndClassesGoTogether();
  tfx::core::HalvesAndShards<double>();
  tfx::core::HalvesAndShards<float>();
  return tfx::test::Result();
}
