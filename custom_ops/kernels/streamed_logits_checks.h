// SPDX-License-Identifier: Apache-2.0
//
// What streamed logits demand of the shapes and types of their arguments, whatever device they are
// on.

#ifndef TFX_LARGEOUT_KERNELS_STREAMED_LOGITS_CHECKS_H_
#define TFX_LARGEOUT_KERNELS_STREAMED_LOGITS_CHECKS_H_

#include <cstdint>

#include "tensorflow/core/framework/tensor.h"

namespace tfx {

// Refuses arguments that don't fit each other. Looks at no number in them.
absl::Status CheckStreamedLogits(const tensorflow::Tensor& hidden, const tensorflow::Tensor& kernel,
                                 const tensorflow::Tensor& bias, const tensorflow::Tensor& labels,
                                 const tensorflow::Tensor& target_scores, int64_t k);

}  // namespace tfx

#endif  // TFX_LARGEOUT_KERNELS_STREAMED_LOGITS_CHECKS_H_
