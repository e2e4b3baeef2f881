// SPDX-License-Identifier: Apache-2.0
//
// Compiled once an instruction set.

#include "tests/vector_exp_isa.h"

#include "core/vector_exp.h"

namespace tfx::core::TFX_ISA {

float ExpOf(float x) { return ExpOfNonPositive(Broadcast(x))[kLanes - 1]; }

}  // namespace tfx::core::TFX_ISA
