// SPDX-License-Identifier: Apache-2.0

#ifndef TFX_LARGEOUT_CORE_ADAM_CORRECTION_H_
#define TFX_LARGEOUT_CORE_ADAM_CORRECTION_H_

#include <cstdint>
#include <vector>

namespace tfx::core {

// Adam's correction for moments that start from 0: sqrt(1 - beta_2^t) / (1 - beta_1^t), from a
// table for the first steps.
class AdamCorrection {
 public:
  // REQUIRES: 0 <= beta_1, beta_2 < 1.
  AdamCorrection(double beta_1, double beta_2);

  bool IsFor(double beta_1, double beta_2) const { return beta_1 == beta_1_ && beta_2 == beta_2_; }

  // REQUIRES: age > 0.
  float At(int32_t age) const {
    return age < static_cast<int64_t>(table_.size()) ? table_[age] : Compute(age);
  }

 private:
  float Compute(int32_t age) const;

  double beta_1_, beta_2_;
  std::vector<float> table_;
};

}  // namespace tfx::core

#endif  // TFX_LARGEOUT_CORE_ADAM_CORRECTION_H_
