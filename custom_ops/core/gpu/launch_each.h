// SPDX-License-Identifier: Apache-2.0
//
// Launches of a block or a thread for each of n things. There may be none, for which CUDA would
// refuse the empty grid.

#ifndef TFX_LARGEOUT_CORE_GPU_LAUNCH_EACH_H_
#define TFX_LARGEOUT_CORE_GPU_LAUNCH_EACH_H_

#include <cstdint>

#include "core/gpu/block_reduction.h"
#include "core/gpu/cuda_on_cpu.h"
#include "core/gpu/launch.h"

// n blocks of kThreads threads, without shared memory of a size that is chosen here.
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

__device__ inline int64_t OwnIndex() { return int64_t{blockIdx.x} * kThreads + threadIdx.x; }

}  // namespace tfx::core::gpu

#endif  // TFX_LARGEOUT_CORE_GPU_LAUNCH_EACH_H_
