// SPDX-License-Identifier: Apache-2.0

#include "core/mean_of_rows.h"

#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "tests/bfloat16.h"
#include "tests/expect.h"
#include "tests/workers.h"

namespace tfx::core {

std::vector<float> MeanOf(const void* rows, bool is_bfloat16, int64_t num_rows, int64_t width,
                          InstructionSet set, int num_workers) {
  std::vector<float> mean(width);
  const Workers workers(set, num_workers);
  MeanOfRows(rows, is_bfloat16, num_rows, width, workers.execution, mean.data());
  return mean;
}

// Numbers with a mean far from 0, which a sum in float would miss.
void Test(int64_t num_rows, int64_t width) {
  std::mt19937 random(5);
  std::normal_distribution<float> normal(3, 1);
  std::vector<float> rows(num_rows * width);
  for (float& x : rows) x = normal(random);
  const std::vector<uint16_t> halves = test::Halves(rows);
  const std::vector<float> widened = test::Widened(halves);
  std::vector<double> expected(width), of_halves(width);
  for (size_t i = 0; i < rows.size(); ++i) {
    expected[i % width] += double{rows[i]} / static_cast<double>(num_rows);
    of_halves[i % width] += double{widened[i]} / static_cast<double>(num_rows);
  }
  for (InstructionSet set : InstructionSets()) {
    const std::vector<float> mean = MeanOf(rows.data(), false, num_rows, width, set, 1);
    const std::vector<float> half = MeanOf(halves.data(), true, num_rows, width, set, 1);
    for (int64_t j = 0; j < width; ++j) {
      EXPECT(std::abs(mean[j] - expected[j]) < 1e-6);
      EXPECT(std::abs(half[j] - of_halves[j]) < 1e-6);
    }
    EXPECT(MeanOf(rows.data(), false, num_rows, width, set, 3) == mean);
    EXPECT(MeanOf(halves.data(), true, num_rows, width, set, 3) == half);
  }
}

TEST(All) {
  Test(1, 1);
  Test(3, 0);
  Test(17, 3);
  Test(1500, 700);
  Test(2, 3000);
  Test(3000001, 1);
}

}  // namespace tfx::core
