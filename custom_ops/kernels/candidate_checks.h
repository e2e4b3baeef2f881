// SPDX-License-Identifier: Apache-2.0
//
// What ops on candidate classes demand of the shapes and types of their arguments. Nothing here
// looks at a number in a tensor, so that the arguments may be on any device.

#ifndef TFX_LARGEOUT_KERNELS_CANDIDATE_CHECKS_H_
#define TFX_LARGEOUT_KERNELS_CANDIDATE_CHECKS_H_

#include <cstdint>

#include "tensorflow/core/framework/tensor.h"

namespace tfx {

// Refuses W and b (null: none) that are not those of one layer, of type dtype.
absl::Status CheckLayerShapes(const tensorflow::Tensor& kernel, const tensorflow::Tensor* bias,
                              tensorflow::DataType dtype);

// Refuses a batch that doesn't fit itself, or a layer of a width.
absl::Status CheckBatchShapes(const tensorflow::Tensor& hidden, const tensorflow::Tensor& labels,
                              const tensorflow::Tensor& candidates, int64_t width);

// Refuses gradients of the logits that have another shape than labels [N, K] and logits [N, S].
absl::Status CheckGradientShapes(const tensorflow::Tensor& true_gradient,
                                 const tensorflow::Tensor& candidate_gradient,
                                 const tensorflow::TensorShape& labels,
                                 const tensorflow::TensorShape& logits);

}  // namespace tfx

#endif  // TFX_LARGEOUT_KERNELS_CANDIDATE_CHECKS_H_
