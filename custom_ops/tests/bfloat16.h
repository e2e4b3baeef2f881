// SPDX-License-Identifier: Apache-2.0

#ifndef TFX_LARGEOUT_TESTS_BFLOAT16_H_
#define TFX_LARGEOUT_TESTS_BFLOAT16_H_

#include <cstdint>
#include <cstring>
#include <vector>

namespace tfx::test {

// The upper halves of floats: numbers in bfloat16, rounded towards 0.
inline std::vector<uint16_t> Halves(const std::vector<float>& numbers) {
  std::vector<uint16_t> halves;
  for (const float& number : numbers) {
    uint32_t bits;
    std::memcpy(&bits, &number, sizeof(bits));
    halves.push_back(static_cast<uint16_t>(bits >> 16));
  }
  return halves;
}

inline std::vector<float> Widened(const std::vector<uint16_t>& halves) {
  std::vector<float> numbers(halves.size());
  for (size_t i = 0; i < halves.size(); ++i) {
    const uint32_t bits = uint32_t{halves[i]} << 16;
    std::memcpy(&numbers[i], &bits, sizeof(bits));
  }
  return numbers;
}

}  // namespace tfx::test

#endif  // TFX_LARGEOUT_TESTS_BFLOAT16_H_
