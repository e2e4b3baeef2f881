// SPDX-License-Identifier: Apache-2.0

#ifndef TFX_LARGEOUT_KERNELS_LAYER_WEIGHTS_H_
#define TFX_LARGEOUT_KERNELS_LAYER_WEIGHTS_H_

#include "core/candidate_batch.h"
#include "kernels/locked_variables.h"

namespace tfx {

// W and b of a layer: variables 0 and, if there is a bias, 1.
inline core::LayerWeights WeightsOf(const LockedVariables& variables, int num_biases) {
  const tensorflow::Tensor& kernel = *variables.tensor(0);
  return {kernel.data(), num_biases == 0 ? nullptr : variables.tensor(1)->data(),
          kernel.dtype() == tensorflow::DT_BFLOAT16, kernel.dim_size(0), kernel.dim_size(1)};
}

}  // namespace tfx

#endif  // TFX_LARGEOUT_KERNELS_LAYER_WEIGHTS_H_
