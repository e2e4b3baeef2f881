// SPDX-License-Identifier: Apache-2.0
//
// What the op of the choice of softmax entries is on every device.

#ifndef TFX_LARGEOUT_KERNELS_SOFTMAX_SELECTION_OP_H_
#define TFX_LARGEOUT_KERNELS_SOFTMAX_SELECTION_OP_H_

#include <cstdint>

#include "core/streamed_logits.h"
#include "kernels/layer.h"
#include "kernels/locked_variables.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tfx {

// The arguments of one call, which fit each other. No number on the device has been looked at.
struct SoftmaxSelectionArguments {
  LockedVariables variables;
  core::StreamedLogitsInputs inputs;  // but for `keep`
  core::KeepRule rule;                // but for its seed; none is kept if num_expected is 0
  int64_t num_classes;                // of the layer
  const tensorflow::Tensor *hidden, *labels, *seed;
  core::StreamedLogitsOutputs outputs;  // those that don't depend on what is kept
};

class SoftmaxSelectionCall {
 public:
  explicit SoftmaxSelectionCall(tensorflow::OpKernelConstruction* context);

  // Locks the variables and gets the arguments.
  absl::Status Get(tensorflow::OpKernelContext* context,
                   SoftmaxSelectionArguments* arguments) const;

 private:
  Layer layer_;
  int64_t num_selected_;
  bool rounds_;
};

}  // namespace tfx

#endif  // TFX_LARGEOUT_KERNELS_SOFTMAX_SELECTION_OP_H_
