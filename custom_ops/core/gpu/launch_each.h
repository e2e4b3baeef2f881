// SPDX-License-Identifier: Apache-2.0
//
// Launches of kernels: of a block or a thread for each of n things, and what goes wrong.

#ifndef TFX_LARGEOUT_CORE_GPU_LAUNCH_EACH_H_
#define TFX_LARGEOUT_CORE_GPU_LAUNCH_EACH_H_

#include <cstdint>

#include "core/gpu/block_reduction.h"
#include "core/gpu/cuda_on_cpu.h"
#include "core/gpu/error.h"

// n blocks of kThreads threads, without shared memory of a size that is chosen here. There may be
// none, for which CUDA would refuse the empty grid.
#define TFX_LAUNCH_BLOCKS(kernel, n, stream, ...)                                                 \
  do {                                                                                            \
    const int64_t num_blocks = (n);                                                               \
    if (num_blocks > 0) {                                                                         \
      TFX_LAUNCH(kernel, ::tfx::core::gpu::Grid(num_blocks), dim3(::tfx::core::gpu::kThreads), 0, \
                 stream, __VA_ARGS__);                                                            \
    }                                                                                             \
  } while (false)

// At least n threads; OwnIndex() tells which is which.
#define TFX_LAUNCH_THREADS(kernel, n, stream, ...)                                             \
  TFX_LAUNCH_BLOCKS(kernel, ::tfx::core::gpu::BlocksOf(n, ::tfx::core::gpu::kThreads), stream, \
                    __VA_ARGS__)

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

__device__ inline int64_t OwnIndex() { return int64_t{blockIdx.x} * kThreads + threadIdx.x; }

}  // namespace tfx::core::gpu

#endif  // TFX_LARGEOUT_CORE_GPU_LAUNCH_EACH_H_
