// SPDX-License-Identifier: Apache-2.0
//
// The ops on the logits of all classes, on every device: their arguments and results in the form
// for core. Values on the device are not read.

#ifndef TFX_LARGEOUT_KERNELS_STREAMED_LOGITS_OP_H_
#define TFX_LARGEOUT_KERNELS_STREAMED_LOGITS_OP_H_

#include <cstdint>

#include "core/class_shard.h"
#include "core/streamed_logits.h"
#include "kernels/locked_variables.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tfx {

// Sets *inputs for a whole layer; W and b have one type. `bias` and `target_scores` may be empty:
// there are none. Returns an error if arguments don't fit together.
absl::Status GetStreamedLogits(const tensorflow::Tensor& hidden, const tensorflow::Tensor& kernel,
                               const tensorflow::Tensor& bias, const tensorflow::Tensor& labels,
                               const tensorflow::Tensor& target_scores, int64_t k,
                               core::StreamedLogitsInputs* inputs);

// Reads the classes of the rows of a matrix from three scalars, inputs `input` and the next two of
// an op: first_class, class_stride and num_classes. Returns an error if the last row is not a class
// of the layer.
absl::Status GetClassShard(tensorflow::OpKernelContext* context, int input, int64_t num_rows,
                           core::ClassShard* shard, int64_t* num_classes);

// The op of streamed logits, with W as a tensor or as a variable.
class StreamedLogitsCall {
 public:
  explicit StreamedLogitsCall(tensorflow::OpKernelConstruction* context);

  // Gets the arguments and the number of classes of the layer. A variable is locked while
  // *variables lives; on a GPU its updates come later on the same stream.
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
