// SPDX-License-Identifier: Apache-2.0

#ifndef TFX_LARGEOUT_TESTS_VECTOR_EXP_ISA_H_
#define TFX_LARGEOUT_TESTS_VECTOR_EXP_ISA_H_

#include "core/for_sets.h"

namespace tfx::core {

// exp(x) by ExpOfNonPositive of one instruction set.
TFX_FOR_SETS(float ExpOf(float x))

}  // namespace tfx::core

#endif  // TFX_LARGEOUT_TESTS_VECTOR_EXP_ISA_H_
