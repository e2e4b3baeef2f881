// SPDX-License-Identifier: Apache-2.0
//
// Copies of arrays on a GPU in another type: float, double, or bfloat16 as its bits.

#ifndef TFX_LARGEOUT_CORE_GPU_CONVERTED_COPIES_H_
#define TFX_LARGEOUT_CORE_GPU_CONVERTED_COPIES_H_

#include <cstdint>

#include "core/gpu/bfloat16.h"
#include "core/gpu/launch_each.h"

namespace tfx::core::gpu {

constexpr int kNumbersOfThread = 8;  // whose loads are under way at the same time

template <typename From, typename To>
__global__ void __launch_bounds__(kThreads) Convert(const From* from, int64_t n, To* to) {
  const int64_t first = int64_t{blockIdx.x} * kNumbersOfThread * kThreads + threadIdx.x;
  From numbers[kNumbersOfThread];
  for (int j = 0; j < kNumbersOfThread; ++j) {
    const int64_t i = first + j * kThreads;
    numbers[j] = i < n ? from[i] : From{0};
  }
  for (int j = 0; j < kNumbersOfThread; ++j) {
    const int64_t i = first + j * kThreads;
    if (i < n) Set(to + i, ToNumber(numbers[j]));
  }
}

// Starts to copy n numbers.
template <typename From, typename To>
void Copy(CUstream_st* stream, const From* from, int64_t n, To* to) {
  TFX_LAUNCH_BLOCKS((Convert<From, To>), BlocksOf(n, kNumbersOfThread * kThreads), stream, from, n,
                    to);
}

}  // namespace tfx::core::gpu

#endif  // TFX_LARGEOUT_CORE_GPU_CONVERTED_COPIES_H_
