// SPDX-License-Identifier: Apache-2.0
//
// Faults found by kernels of hash indexes, as errors.

#ifndef TFX_LARGEOUT_KERNELS_HASH_FAULTS_GPU_H_
#define TFX_LARGEOUT_KERNELS_HASH_FAULTS_GPU_H_

#include "core/gpu/hash_faults.h"
#include "kernels/gpu_op.h"
#include "kernels/hash_arguments.h"

namespace tfx {

// The element itself is read from the device.
inline absl::Status CheckElement(tensorflow::OpKernelContext* context,
                                 const core::HashFamily& family,
                                 const core::gpu::HashFaults& faults) {
  if (faults.element == core::gpu::kNoFault) return absl::OkStatus();
  int32_t got;
  TF_RETURN_IF_ERROR(CopyToHost(context, family.elements + faults.element, &got));
  return ElementError(family, static_cast<int64_t>(faults.element), got);
}

}  // namespace tfx

#endif  // TFX_LARGEOUT_KERNELS_HASH_FAULTS_GPU_H_
