// SPDX-License-Identifier: Apache-2.0
//
// What the ops of streamed logits are on every device: their arguments and results as core takes
// them, and W as a tensor or as a variable.

#ifndef TFX_LARGEOUT_KERNELS_STREAMED_LOGITS_OP_H_
#define TFX_LARGEOUT_KERNELS_STREAMED_LOGITS_OP_H_

#include <cstdint>
#include <type_traits>

#include "core/streamed_logits.h"
#include "kernels/class_shard.h"
#include "kernels/locked_variables.h"
#include "kernels/streamed_logits_checks.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tfx {

// Fills `inputs` from those of the op and W, and gives the number of classes of the layer. Refuses
// arguments that don't fit each other; looks at no number on the device.
template <typename T>
absl::Status ReadStreamedLogits(tensorflow::OpKernelContext* context,
                                const tensorflow::Tensor& kernel, int64_t k,
                                core::StreamedLogitsInputs* inputs, int64_t* num_classes) {
  const tensorflow::Tensor& hidden = context->input(0);
  const tensorflow::Tensor& bias = context->input(2);
  const tensorflow::Tensor& labels = context->input(3);
  const tensorflow::Tensor& target_scores = context->input(4);
  TF_RETURN_IF_ERROR(CheckStreamedLogits(hidden, kernel, bias, labels, target_scores, k));
  *inputs = {};
  TF_RETURN_IF_ERROR(GetClassShard(context, 5, kernel.dim_size(0), &inputs->shard, num_classes));
  inputs->hidden = hidden.flat<float>().data();
  inputs->kernel = kernel.flat<T>().data();
  inputs->bias = bias.NumElements() > 0 ? bias.flat<T>().data() : nullptr;
  inputs->is_bfloat16 = std::is_same_v<T, tensorflow::bfloat16>;
  inputs->labels = labels.flat<int64_t>().data();
  inputs->batch = hidden.dim_size(0);
  inputs->width = hidden.dim_size(1);
  inputs->num_classes = kernel.dim_size(0);
  inputs->num_labels = labels.dim_size(1);
  inputs->k = k;
  const bool has_scores = target_scores.NumElements() > 0;
  inputs->target_scores = has_scores ? target_scores.flat<float>().data() : nullptr;
  return absl::OkStatus();
}

inline absl::Status AllocateStreamedLogits(tensorflow::OpKernelContext* context,
                                           const core::StreamedLogitsInputs& inputs,
                                           core::StreamedLogitsOutputs* outputs) {
  const tensorflow::TensorShape by_label({inputs.batch, inputs.num_labels});
  const tensorflow::TensorShape by_rank({inputs.batch, inputs.k});
  tensorflow::Tensor *logsumexp, *target_logits, *target_ranks, *top_scores, *top_ids;
  TF_RETURN_IF_ERROR(context->allocate_output(0, {inputs.batch}, &logsumexp));
  TF_RETURN_IF_ERROR(context->allocate_output(1, by_label, &target_logits));
  TF_RETURN_IF_ERROR(context->allocate_output(2, by_label, &target_ranks));
  TF_RETURN_IF_ERROR(context->allocate_output(3, by_rank, &top_scores));
  TF_RETURN_IF_ERROR(context->allocate_output(4, by_rank, &top_ids));
  *outputs = {};
  outputs->logsumexp = logsumexp->flat<float>().data();
  outputs->target_logits = target_logits->flat<float>().data();
  outputs->target_ranks = target_ranks->flat<int64_t>().data();
  outputs->top_scores = top_scores->flat<float>().data();
  outputs->top_ids = top_ids->flat<int64_t>().data();
  return absl::OkStatus();
}

using ComputeStreamedLogits = absl::Status (*)(tensorflow::OpKernelContext* context,
                                               const tensorflow::Tensor& kernel, int64_t k);

template <ComputeStreamedLogits compute>
class StreamedLogitsOp : public tensorflow::OpKernel {
 public:
  explicit StreamedLogitsOp(tensorflow::OpKernelConstruction* context)
      : tensorflow::OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("k", &k_));
  }

  void Compute(tensorflow::OpKernelContext* context) override {
    OP_REQUIRES_OK(context, compute(context, context->input(1), k_));
  }

 private:
  int64_t k_;
};

// W is locked until `compute` returns. On a GPU what updates it comes behind on the same stream.
template <ComputeStreamedLogits compute>
class ResourceStreamedLogitsOp : public tensorflow::OpKernel {
 public:
  explicit ResourceStreamedLogitsOp(tensorflow::OpKernelConstruction* context)
      : tensorflow::OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("k", &k_));
  }

  void Compute(tensorflow::OpKernelContext* context) override {
    LockedVariables variables;
    OP_REQUIRES_OK(context, variables.Lock(context, {"kernel"}, LockedVariables::Mode::kShared, 1));
    OP_REQUIRES_OK(context, compute(context, *variables.tensor(0), k_));
  }

 private:
  int64_t k_;
};

}  // namespace tfx

#endif  // TFX_LARGEOUT_KERNELS_STREAMED_LOGITS_OP_H_
