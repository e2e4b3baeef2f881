// SPDX-License-Identifier: Apache-2.0

#ifndef TFX_LARGEOUT_CORE_DENSE_KERNELS_H_
#define TFX_LARGEOUT_CORE_DENSE_KERNELS_H_

#include "core/dense_kernels_isa.h"
#include "core/instruction_set.h"

namespace tfx::core {

// The kernels for T, float or double.
// REQUIRES: Supports(set).
template <typename T>
const DenseKernels<T>& DenseKernelsOf(InstructionSet set);

}  // namespace tfx::core

#endif  // TFX_LARGEOUT_CORE_DENSE_KERNELS_H_
