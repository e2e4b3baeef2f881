// SPDX-License-Identifier: Apache-2.0
//
// What the op of the backward step over all classes is on every device.

#ifndef TFX_LARGEOUT_KERNELS_SOFTMAX_UPDATE_OP_H_
#define TFX_LARGEOUT_KERNELS_SOFTMAX_UPDATE_OP_H_

#include <utility>

#include "core/softmax_update.h"
#include "kernels/layer_update.h"
#include "kernels/locked_variables.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tfx {

// Copies are cheap: a call locks one of its own, or under a lock of the op.
class SoftmaxUpdateArguments {
 public:
  absl::Status ReadAttributes(tensorflow::OpKernelConstruction* context);

  // Locks the variables and refuses arguments that don't fit each other. Looks at no number on a
  // GPU, nor at others of the batch.
  absl::Status Lock(tensorflow::OpKernelContext* context, LockedVariables* variables);

  // Of the inputs after the variables, in their order.
  enum Input {
    kHidden,
    kLabels,
    kLogsumexp,
    kTargetGradient,
    kLogsumexpGradient,
    kMeanGradient,
    kLearningRate
  };
  static const tensorflow::Tensor& Get(tensorflow::OpKernelContext* context,
                                       const LockedVariables& variables, Input input) {
    return context->input(variables.size() + input);
  }

  // REQUIRES: Lock succeeded.
  core::SoftmaxBatch Batch(tensorflow::OpKernelContext* context,
                           const LockedVariables& variables) const;
  core::LayerWeights Weights(const LockedVariables& variables) const {
    return WeightsOf(variables, num_biases_);
  }

  bool rounds() const { return rounds_; }
  const LayerUpdate& layer() const { return layer_; }

 private:
  absl::Status CheckShapes(tensorflow::OpKernelContext* context,
                           const LockedVariables& variables) const;

  int num_biases_;
  bool rounds_;
  tensorflow::DataType dtype_;
  LayerUpdate layer_;
};

}  // namespace tfx

#endif  // TFX_LARGEOUT_KERNELS_SOFTMAX_UPDATE_OP_H_
