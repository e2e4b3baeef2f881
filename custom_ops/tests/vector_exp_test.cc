// SPDX-License-Identifier: Apache-2.0

#include <cmath>

#include "tests/expect.h"
#include "tests/vector_exp_isa.h"
#include "tests/workers.h"

namespace tfx::core {

void WithinTwoUnitsInTheLastPlace(float (*exp_of)(float)) {
  for (float x = 0.0f; x > -87.0f; x = x * 1.0001f - 1e-6f) {
    const double exact = std::exp(static_cast<double>(x));
    const float rounded = static_cast<float>(exact);
    const double unit = std::nextafter(rounded, INFINITY) - rounded;
    EXPECT(std::abs(exp_of(x) - exact) <= 2 * unit);
  }
}

void SpecialValues(float (*exp_of)(float)) {
  EXPECT(exp_of(0.0f) == 1.0f);
  EXPECT(exp_of(-INFINITY) == 0.0f);
  EXPECT(exp_of(-3e38f) == 0.0f);
  EXPECT(exp_of(-104.0f) == 0.0f);
  EXPECT(exp_of(-95.0f) <= 1e-38f);
  EXPECT(std::isnan(exp_of(NAN)));
}

TEST(EverySet) {
  for (InstructionSet set : InstructionSets()) {
    WithinTwoUnitsInTheLastPlace(TFX_OF_SET(ExpOf, set));
    SpecialValues(TFX_OF_SET(ExpOf, set));
  }
}

}  // namespace tfx::core
