// SPDX-License-Identifier: Apache-2.0

#include "core/mean_of_rows.h"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "tests/expect.h"

namespace tfx::core {

void OneThreadAnIndex(int64_t n, const std::function<void(int64_t, int64_t)>& work, int64_t) {
  std::vector<std::thread> threads;
  for (int64_t i = 0; i < n; ++i) threads.emplace_back(work, i, i + 1);
  for (std::thread& thread : threads) thread.join();
}

std::vector<float> MeanOf(const void* rows, bool is_bfloat16, int64_t num_rows, int64_t width,
                          InstructionSet set, int num_workers) {
  std::vector<float> mean(width);
  const ParallelFor on_threads = OneThreadAnIndex;
  Workspace workspace;
  const Execution execution(set, num_workers, on_threads, workspace);
  MeanOfRows(rows, is_bfloat16, num_rows, width, execution, mean.data());
  return mean;
}

// Numbers with a mean far from 0, which a sum in float would miss.
void Test(int64_t num_rows, int64_t width) {
  std::mt19937 random(5);
  std::normal_distribution<float> normal(3, 1);
  std::vector<float> rows(num_rows * width);
  std::vector<uint16_t> halves(rows.size());
  std::vector<double> expected(width), of_halves(width);
  for (size_t i = 0; i < rows.size(); ++i) {
    rows[i] = normal(random);
    uint32_t bits;
    std::memcpy(&bits, &rows[i], sizeof bits);
    halves[i] = static_cast<uint16_t>(bits >> 16);
    bits = uint32_t{halves[i]} << 16;
    float half;
    std::memcpy(&half, &bits, sizeof half);
    expected[i % width] += double{rows[i]} / static_cast<double>(num_rows);
    of_halves[i % width] += double{half} / static_cast<double>(num_rows);
  }
  for (InstructionSet set : kInstructionSets) {
    if (!Supports(set)) continue;
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

}  // namespace tfx::core

int main() {
  using tfx::core::Test;
  Test(1, 1);
  Test(3, 0);
  Test(17, 3);
  Test(1500, 700);
  Test(2, 3000);
  Test(3000001, 1);
  return tfx::test::Result();
}
