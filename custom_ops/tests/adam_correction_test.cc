// SPDX-License-Identifier: Apache-2.0

#include "core/adam_correction.h"

#include <cmath>
#include <cstdint>

#include "tests/expect.h"

namespace tfx::core {

TEST(CorrectionsAreThoseOfTheFormula) {
  for (double beta_1 : {0.0, 0.9, 0.999}) {
    for (double beta_2 : {0.0, 0.999, 0.999999}) {
      const AdamCorrection correction(beta_1, beta_2);
      for (int32_t age : {1, 2, 100, 32767, 32768, 1000000, INT32_MAX}) {
        const double expected = std::sqrt(1 - std::pow(beta_2, age)) / (1 - std::pow(beta_1, age));
        EXPECT(std::abs(correction.At(age) / expected - 1) < 1e-6);
      }
      EXPECT(correction.IsFor(beta_1, beta_2));
      EXPECT(!correction.IsFor(beta_1, 0.5));
    }
  }
}

}  // namespace tfx::core
