// SPDX-License-Identifier: Apache-2.0

#ifndef TFX_LARGEOUT_KERNELS_PRODUCT_PRECISION_H_
#define TFX_LARGEOUT_KERNELS_PRODUCT_PRECISION_H_

#include "core/gpu/products.h"
#include "tensorflow/core/platform/tensor_float_32_utils.h"

namespace tfx {

// What products on a GPU are of: bfloat16 where factors are to be `rounded`, else float32, or TF32
// where this process has it on (Python: set_product_precision) at the time of the call.
inline core::gpu::Precision ProductPrecision(bool rounded) {
  if (rounded) return core::gpu::Precision::kBfloat16;
  return tensorflow::tensor_float_32_execution_enabled() ? core::gpu::Precision::kTf32
                                                         : core::gpu::Precision::kFloat32;
}

}  // namespace tfx

#endif  // TFX_LARGEOUT_KERNELS_PRODUCT_PRECISION_H_
