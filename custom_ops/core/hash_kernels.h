// SPDX-License-Identifier: Apache-2.0

#ifndef TFX_LARGEOUT_CORE_HASH_KERNELS_H_
#define TFX_LARGEOUT_CORE_HASH_KERNELS_H_

#include "core/hash_kernels_isa.h"
#include "core/instruction_set.h"

namespace tfx::core {

// REQUIRES: Supports(set).
const HashKernels& HashKernelsOf(InstructionSet set);

}  // namespace tfx::core

#endif  // TFX_LARGEOUT_CORE_HASH_KERNELS_H_
