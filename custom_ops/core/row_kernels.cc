// SPDX-License-Identifier: Apache-2.0

#include "core/row_kernels.h"

namespace tfx::core {

const RowKernels& RowKernelsOf(InstructionSet set) {
#ifdef __x86_64__
  if (set >= InstructionSet::kAvx512) return avx512::kRowKernels;
  if (set == InstructionSet::kAvx2) return avx2::kRowKernels;
#endif
  (void)set;
  return baseline::kRowKernels;
}

}  // namespace tfx::core
