// SPDX-License-Identifier: Apache-2.0
//
// What ops on the logits of all classes are on every device: their arguments and results as core
// takes them. Nothing here looks at a number on the device.

#ifndef TFX_LARGEOUT_KERNELS_STREAMED_LOGITS_OP_H_
#define TFX_LARGEOUT_KERNELS_STREAMED_LOGITS_OP_H_

#include <cstdint>

#include "core/class_shard.h"
#include "core/streamed_logits.h"
#include "kernels/locked_variables.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tfx {

// Sets *inputs to those of a whole layer, of which W and b are of one type. `bias` and
// `target_scores` may be empty: there are none. Refuses arguments that don't fit each other.
absl::Status GetStreamedLogits(const tensorflow::Tensor& hidden, const tensorflow::Tensor& kernel,
                               const tensorflow::Tensor& bias, const tensorflow::Tensor& labels,
                               const tensorflow::Tensor& target_scores, int64_t k,
                               core::StreamedLogitsInputs* inputs);

// Reads which classes of a layer the rows of a matrix are from three scalars, inputs `input` and
// the next two of an op: first_class, class_stride and num_classes. Refuses them if the last row
// would be no class of the layer.
absl::Status GetClassShard(tensorflow::OpKernelContext* context, int input, int64_t num_rows,
                           core::ClassShard* shard, int64_t* num_classes);

// What the op of streamed logits is, with W as a tensor or as a variable.
class StreamedLogitsCall {
 public:
  explicit StreamedLogitsCall(tensorflow::OpKernelConstruction* context);

  // Gets the arguments and the number of classes of the layer. A variable is locked as long as
  // *variables lives; on a GPU what updates it comes behind on the same stream.
  absl::Status Get(tensorflow::OpKernelContext* context, LockedVariables* variables,
                   core::StreamedLogitsInputs* inputs, int64_t* num_classes) const;

  static absl::Status Allocate(tensorflow::OpKernelContext* context,
                               const core::StreamedLogitsInputs& inputs,
                               core::StreamedLogitsOutputs* outputs);

 private:
  int64_t k_;
};

}  // namespace tfx

#endif  // TFX_LARGEOUT_KERNELS_STREAMED_LOGITS_OP_H_
