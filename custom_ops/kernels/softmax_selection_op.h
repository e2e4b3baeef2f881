// SPDX-License-Identifier: Apache-2.0
//
// What the op of the choice of softmax entries is on every device.

#ifndef TFX_LARGEOUT_KERNELS_SOFTMAX_SELECTION_OP_H_
#define TFX_LARGEOUT_KERNELS_SOFTMAX_SELECTION_OP_H_

#include <cstdint>

#include "core/streamed_logits.h"
#include "kernels/locked_variables.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tfx {

// The arguments of one call, which fit each other. No number on the device has been looked at.
struct SoftmaxSelectionArguments {
  core::StreamedLogitsInputs inputs;  // but for `keep`
  core::KeepRule rule;                // but for its seed; none is kept if num_expected is 0
  int64_t num_classes;                // of the layer
  const tensorflow::Tensor *hidden, *labels, *seed;
};

class SoftmaxSelectionOp : public tensorflow::OpKernel {
 public:
  explicit SoftmaxSelectionOp(tensorflow::OpKernelConstruction* context);
  void Compute(tensorflow::OpKernelContext* context) final;

 protected:
  // Checks numbers and does the work, with the outputs of the op that don't depend on it. The
  // variables are locked.
  virtual absl::Status Run(tensorflow::OpKernelContext* context,
                           const SoftmaxSelectionArguments& arguments,
                           const core::StreamedLogitsOutputs& outputs) = 0;

 private:
  absl::Status Read(tensorflow::OpKernelContext* context, const LockedVariables& variables,
                    SoftmaxSelectionArguments* arguments) const;

  int num_biases_;
  int64_t num_selected_;
  bool rounds_;
  tensorflow::DataType dtype_;
};

}  // namespace tfx

#endif  // TFX_LARGEOUT_KERNELS_SOFTMAX_SELECTION_OP_H_
