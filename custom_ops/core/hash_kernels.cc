// SPDX-License-Identifier: Apache-2.0

#include "core/hash_kernels.h"

namespace tfx::core {

const HashKernels& HashKernelsOf(InstructionSet set) {
#ifdef __x86_64__
  if (set >= InstructionSet::kAvx512) return avx512::kHashKernels;
  if (set == InstructionSet::kAvx2) return avx2::kHashKernels;
#endif
  (void)set;
  return baseline::kHashKernels;
}

}  // namespace tfx::core
