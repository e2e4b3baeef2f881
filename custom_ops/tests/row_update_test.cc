// SPDX-License-Identifier: Apache-2.0

#include "core/row_update.h"

#include <cstdint>
#include <limits>
#include <vector>

#include "tests/expect.h"

namespace tfx::core {

struct AdamUpdater {
  const AdamCorrection correction{0.9, 0.999};
  const RowStep step = {
      RowMethod::kAdam, 0.5f, 1, std::numeric_limits<float>::infinity(), 0.9f, 0.999f, 0.1f,
      0.001f,           1e-7f};
  const RowUpdater value{step, &correction, RowKernelsOf(InstructionSet::kBaseline)};
};

struct Row {
  explicit Row(uint32_t age) : w(3, 1), m(3, 0.5), v(3, 2), age(age) {}

  void Update(const AdamUpdater& adam) {
    const float gradient[] = {-1, 0, 2};
    adam.value.Update({w.data(), false, 3, {m.data(), v.data()}, &age}, 0, gradient);
  }

  std::vector<float> w, m, v;
  uint32_t age;
};

// An age stays at its end, where the correction is 1, as it is long before.
TEST(AgesDoNotWrap) {
  constexpr uint32_t kLast = std::numeric_limits<int32_t>::max();
  const AdamUpdater adam;
  Row young(1000000);
  for (int i = 0; i < 5; ++i) young.Update(adam);
  EXPECT(young.age == 1000005);
  for (uint32_t age : {kLast - 3, kLast - 1, kLast, kLast + 1, UINT32_MAX}) {
    Row old(age);
    for (int i = 0; i < 5; ++i) old.Update(adam);
    EXPECT(old.age == kLast);
    EXPECT(old.w == young.w && old.m == young.m && old.v == young.v);
  }
}

// A row gets the same random bits of a class wherever it is, on every instruction set, and other
// ones of each class.
TEST(RandomBitsGoByTheClass) {
  RowStep step = {RowMethod::kSgd, 1, 1, std::numeric_limits<float>::infinity(), 0, 0, 1, 1, 0};
  step.rounding = Rounding::kStochastic;
  constexpr int kWidth = 37;
  const std::vector<float> gradient(kWidth, -1.001f);
  const auto rounded = [&](InstructionSet set, const ClassShard& shard, int64_t row) {
    std::vector<uint16_t> weights(shard.num_rows * kWidth);
    WeightRows rows = {weights.data(), true, kWidth, {nullptr, nullptr}, nullptr};
    rows.key = 5;
    rows.shard = shard;
    RowUpdater(step, nullptr, RowKernelsOf(set)).Update(rows, row, gradient.data());
    return std::vector<uint16_t>(&weights[row * kWidth], &weights[row * kWidth] + kWidth);
  };
  const auto expected = rounded(InstructionSet::kBaseline, {0, 1, 9}, 7);
  for (InstructionSet set : kInstructionSets) {
    if (!Supports(set)) continue;
    EXPECT(rounded(set, {0, 1, 9}, 7) == expected);
    EXPECT(rounded(set, {3, 4, 2}, 1) == expected);
    EXPECT(rounded(set, {0, 1, 9}, 8) != expected);
  }
}

}  // namespace tfx::core
