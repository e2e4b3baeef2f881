// SPDX-License-Identifier: Apache-2.0
//
// Launches of kernels: a block or a thread for each of n items, and their errors.

#ifndef TFX_LARGEOUT_CORE_GPU_LAUNCH_EACH_H_
#define TFX_LARGEOUT_CORE_GPU_LAUNCH_EACH_H_

#include <cstdint>

#include "core/gpu/block_reduction.h"
#include "core/gpu/cuda_on_cpu.h"
#include "core/gpu/error.h"

// n blocks of kThreads threads, without dynamic shared memory. n may be 0, although CUDA rejects an
// empty grid.
#define TFX_LAUNCH_BLOCKS(kernel, n, stream, ...)                                                 \
  do {                                                                                            \
    const int64_t num_blocks = (n);                                                               \
    if (num_blocks > 0) {                                                                         \
      TFX_LAUNCH(kernel, ::tfx::core::gpu::Grid(num_blocks), dim3(::tfx::core::gpu::kThreads), 0, \
                 stream, __VA_ARGS__);                                                            \
    }                                                                                             \
  } while (false)

// At least n threads; OwnIndex() is the index of each.
#define TFX_LAUNCH_THREADS(kernel, n, stream, ...)                                             \
  TFX_LAUNCH_BLOCKS(kernel, ::tfx::core::gpu::BlocksOf(n, ::tfx::core::gpu::kThreads), stream, \
                    __VA_ARGS__)

namespace tfx::core::gpu {

// Drops earlier errors, which do not concern launches from here on.
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

// The error since ForgetErrors, or since the last call. After a failed launch, later launches are
// skipped (TFX_LAUNCH), since their inputs are missing.
inline Error LastError() { return ErrorOf(cudaGetLastError()); }

inline dim3 Grid(int64_t x, int64_t y = 1) {
  return dim3(static_cast<unsigned>(x), static_cast<unsigned>(y));
}

// The number of blocks of `size` threads (or other items) for n.
inline int64_t BlocksOf(int64_t n, int64_t size) { return (n + size - 1) / size; }

__device__ inline int64_t OwnIndex() { return int64_t{blockIdx.x} * kThreads + threadIdx.x; }

}  // namespace tfx::core::gpu

#endif  // TFX_LARGEOUT_CORE_GPU_LAUNCH_EACH_H_
