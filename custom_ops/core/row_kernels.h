// SPDX-License-Identifier: Apache-2.0

#ifndef TFX_LARGEOUT_CORE_ROW_KERNELS_H_
#define TFX_LARGEOUT_CORE_ROW_KERNELS_H_

#include "core/instruction_set.h"
#include "core/row_kernels_isa.h"

namespace tfx::core {

// REQUIRES: Supports(set).
const RowKernels& RowKernelsOf(InstructionSet set);

}  // namespace tfx::core

#endif  // TFX_LARGEOUT_CORE_ROW_KERNELS_H_
