// SPDX-License-Identifier: Apache-2.0

#include "core/dense_kernels.h"

#include <type_traits>

namespace tfx::core {
namespace {

template <typename T>
const DenseKernels<T>& Choose(const DenseKernels<float>& floats,
                              const DenseKernels<double>& doubles) {
  if constexpr (std::is_same_v<T, float>) {
    return floats;
  } else {
    return doubles;
  }
}

}  // namespace

template <typename T>
const DenseKernels<T>& DenseKernelsOf(InstructionSet set) {
  switch (set) {
#ifdef __x86_64__
    case InstructionSet::kAvx512Bf16:
    case InstructionSet::kAvx512:
      return Choose<T>(avx512::kFloatKernels, avx512::kDoubleKernels);
    case InstructionSet::kAvx2:
      return Choose<T>(avx2::kFloatKernels, avx2::kDoubleKernels);
#endif
    default:
      return Choose<T>(baseline::kFloatKernels, baseline::kDoubleKernels);
  }
}

template const DenseKernels<float>& DenseKernelsOf<float>(InstructionSet set);
template const DenseKernels<double>& DenseKernelsOf<double>(InstructionSet set);

}  // namespace tfx::core
