// SPDX-License-Identifier: Apache-2.0
//
// What ops on a GPU say where the device, its driver or its memory fails them.

#ifndef TFX_LARGEOUT_KERNELS_ERRORS_GPU_H_
#define TFX_LARGEOUT_KERNELS_ERRORS_GPU_H_

#include "absl/status/status.h"
#include "core/gpu/error.h"

namespace tfx {

// What core::gpu says, with what to do, and whether variables are as they were.
absl::Status StatusOf(const core::gpu::Error& error);

// What an op ends with. Where TensorFlow had no memory for it, adds what StatusOf says of memory.
// REQUIRES: the op changes no variable before it has all its memory.
absl::Status Explained(const absl::Status& status);

}  // namespace tfx

#endif  // TFX_LARGEOUT_KERNELS_ERRORS_GPU_H_
