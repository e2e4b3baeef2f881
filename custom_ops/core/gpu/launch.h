// SPDX-License-Identifier: Apache-2.0
//
// What launches of kernels have in common.

#ifndef TFX_LARGEOUT_CORE_GPU_LAUNCH_H_
#define TFX_LARGEOUT_CORE_GPU_LAUNCH_H_

#include <cstdint>

#include "core/gpu/cuda_on_cpu.h"
#include "core/gpu/error.h"

namespace tfx::core::gpu {

// Forgets what went wrong before, which is no concern of launches from here on.
inline void ForgetErrors() { cudaGetLastError(); }

inline ErrorKind KindOf(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return ErrorKind::kNone;
    case cudaErrorMemoryAllocation:
      return ErrorKind::kMemory;
    case cudaErrorInvalidDeviceFunction:
    case cudaErrorInvalidKernelImage:
    case cudaErrorNoKernelImageForDevice:
    case cudaErrorInvalidPtx:
    case cudaErrorJitCompilerNotFound:
    case cudaErrorUnsupportedPtxVersion:
      return ErrorKind::kNoCode;
    case cudaErrorInsufficientDriver:
    case cudaErrorCallRequiresNewerDriver:
      return ErrorKind::kOldDriver;
    default:
      return ErrorKind::kOther;
  }
}

inline Error ErrorOf(cudaError_t error) {
  if (error == cudaSuccess) return {};
  return {KindOf(error), cudaGetErrorString(error)};
}

// What has gone wrong since ForgetErrors, or since it was last asked for. Where a launch fails,
// those behind it don't take place (TFX_LAUNCH): what they work on is not there.
inline Error LastError() { return ErrorOf(cudaGetLastError()); }

inline dim3 Grid(int64_t x, int64_t y = 1) {
  return dim3(static_cast<unsigned>(x), static_cast<unsigned>(y));
}

// Blocks of `size` threads, or of so many other things, that n take.
inline int64_t BlocksOf(int64_t n, int64_t size) { return (n + size - 1) / size; }

}  // namespace tfx::core::gpu

#endif  // TFX_LARGEOUT_CORE_GPU_LAUNCH_H_
