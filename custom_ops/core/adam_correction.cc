// SPDX-License-Identifier: Apache-2.0

#include "core/adam_correction.h"

#include <cmath>

namespace tfx::core {
namespace {

constexpr int32_t kTableSize = 1 << 15;

}  // namespace

AdamCorrection::AdamCorrection(double beta_1, double beta_2) : beta_1_(beta_1), beta_2_(beta_2) {
  table_.reserve(kTableSize);
  double power_1 = 1, power_2 = 1;
  table_.push_back(0);
  for (int32_t age = 1; age < kTableSize; ++age) {
    power_1 *= beta_1;
    power_2 *= beta_2;
    table_.push_back(static_cast<float>(std::sqrt(1 - power_2) / (1 - power_1)));
  }
}

float AdamCorrection::Compute(int32_t age) const {
  return static_cast<float>(std::sqrt(1 - std::pow(beta_2_, age)) / (1 - std::pow(beta_1_, age)));
}

}  // namespace tfx::core
