// SPDX-License-Identifier: Apache-2.0
//
// The op of the backward step over all classes, on every device.

#ifndef TFX_LARGEOUT_KERNELS_SOFTMAX_UPDATE_OP_H_
#define TFX_LARGEOUT_KERNELS_SOFTMAX_UPDATE_OP_H_

#include "core/softmax_update.h"
#include "kernels/layer.h"
#include "kernels/locked_variables.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tfx {

// Copies are cheap: each call locks a copy.
class SoftmaxUpdateArguments : public LayerUpdate {
 public:
  absl::Status ReadAttributes(tensorflow::OpKernelConstruction* context);

  // Locks the variables and returns an error if arguments don't fit together. Does not read values
  // on a GPU, or of the batch.
  absl::Status Lock(tensorflow::OpKernelContext* context, LockedVariables* variables);

  // The inputs after the variables, in order.
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

  bool rounds() const { return rounds_; }

 private:
  static absl::Status CheckShapes(tensorflow::OpKernelContext* context,
                                  const LockedVariables& variables);

  bool rounds_;
};

}  // namespace tfx

#endif  // TFX_LARGEOUT_KERNELS_SOFTMAX_UPDATE_OP_H_
