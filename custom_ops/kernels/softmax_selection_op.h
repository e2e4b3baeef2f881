// SPDX-License-Identifier: Apache-2.0
//
// The op that selects softmax entries, on every device.

#ifndef TFX_LARGEOUT_KERNELS_SOFTMAX_SELECTION_OP_H_
#define TFX_LARGEOUT_KERNELS_SOFTMAX_SELECTION_OP_H_

#include <cstdint>

#include "core/streamed_logits.h"
#include "kernels/layer.h"
#include "kernels/locked_variables.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tfx {

// The arguments of one call, with consistent shapes. Values on the device are not checked.
struct SoftmaxSelectionArguments {
  LockedVariables variables;
  core::StreamedLogitsInputs inputs;  // except for `keep`
  core::KeepRule rule;                // except for its seed; nothing is kept if num_expected is 0
  int64_t num_classes;                // of the layer
  const tensorflow::Tensor *hidden, *labels, *seed;
  core::StreamedLogitsOutputs outputs;  // outputs that don't depend on the kept entries
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
