// SPDX-License-Identifier: Apache-2.0
//
// Copies of arrays on a GPU in another type: float, double, or bfloat16 as its bits.

#ifndef TFX_LARGEOUT_CORE_GPU_CONVERTED_COPIES_H_
#define TFX_LARGEOUT_CORE_GPU_CONVERTED_COPIES_H_

#include <cstdint>

#include "core/gpu/bfloat16.h"
#include "core/gpu/launch_each.h"

namespace tfx::core::gpu {

template <typename From, typename To>
__global__ void __launch_bounds__(kThreads) Convert(const From* from, int64_t n, To* to) {
  const int64_t i = OwnIndex();
  if (i < n) Set(to + i, ToNumber(from[i]));
}

// Starts to copy n numbers.
template <typename From, typename To>
void Copy(CUstream_st* stream, const From* from, int64_t n, To* to) {
  TFX_LAUNCH_THREADS((Convert<From, To>), n, stream, from, n, to);
}

}  // namespace tfx::core::gpu

#endif  // TFX_LARGEOUT_CORE_GPU_CONVERTED_COPIES_H_
