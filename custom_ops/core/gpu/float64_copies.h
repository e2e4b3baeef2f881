// SPDX-License-Identifier: Apache-2.0
//
// Copies of arrays in float64, in which a GPU takes factored steps.

#ifndef TFX_LARGEOUT_CORE_GPU_FLOAT64_COPIES_H_
#define TFX_LARGEOUT_CORE_GPU_FLOAT64_COPIES_H_

#include <cstdint>

#include "core/gpu/launch_each.h"

namespace tfx::core::gpu {

template <typename T>
__global__ void __launch_bounds__(kThreads) CopyToFloat64(const T* from, int64_t n, double* to) {
  if (OwnIndex() < n) to[OwnIndex()] = from[OwnIndex()];
}

// Begins to copy n numbers.
template <typename T>
void ToFloat64(CUstream_st* stream, const T* from, int64_t n, double* to) {
  TFX_LAUNCH_THREADS(CopyToFloat64<T>, n, stream, from, n, to);
}

}  // namespace tfx::core::gpu

#endif  // TFX_LARGEOUT_CORE_GPU_FLOAT64_COPIES_H_
