// SPDX-License-Identifier: Apache-2.0
//
// What launches of kernels have in common.

#ifndef TFX_LARGEOUT_CORE_GPU_LAUNCH_H_
#define TFX_LARGEOUT_CORE_GPU_LAUNCH_H_

#include <cstdint>

#include "core/gpu/cuda_on_cpu.h"

namespace tfx::core::gpu {

// Forgets what went wrong before, which is no concern of launches from here on.
inline void ForgetErrors() { cudaGetLastError(); }

// What has gone wrong since ForgetErrors, or null.
inline const char* LastError() {
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

inline dim3 Grid(int64_t x, int64_t y = 1) {
  return dim3(static_cast<unsigned>(x), static_cast<unsigned>(y));
}

// Blocks of `size` threads, or of so many other things, that n take.
inline int64_t BlocksOf(int64_t n, int64_t size) { return (n + size - 1) / size; }

}  // namespace tfx::core::gpu

#endif  // TFX_LARGEOUT_CORE_GPU_LAUNCH_H_
