// SPDX-License-Identifier: Apache-2.0

#include "kernels/streamed_logits_op.h"

#include <limits>

#include "kernels/invalid_argument.h"

namespace tfx {

namespace tf = tensorflow;

absl::Status GetStreamedLogits(const tf::Tensor& hidden, const tf::Tensor& kernel,
                               const tf::Tensor& bias, const tf::Tensor& labels,
                               const tf::Tensor& target_scores, int64_t k,
                               core::StreamedLogitsInputs* inputs) {
  if (hidden.dims() != 2 || kernel.dims() != 2 || bias.dims() != 1 || labels.dims() != 2) {
    return InvalidArgument("hidden, kernel, bias and labels must have rank 2, 2, 1 and 2; got ",
                           hidden.dims(), ", ", kernel.dims(), ", ", bias.dims(), " and ",
                           labels.dims());
  }
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  const int64_t num_classes = kernel.dim_size(0);
  if (hidden.dim_size(0) > kMost || hidden.dim_size(1) > kMost || labels.dim_size(1) > kMost) {
    return InvalidArgument("hidden [B, D] and labels [B, K] must have dimensions below 2^31; got ",
                           "shapes ", hidden.shape().DebugString(), " and ",
                           labels.shape().DebugString());
  }
  if (kernel.dtype() != bias.dtype()) {
    return InvalidArgument("kernel must have the dtype of bias, ", tf::DataTypeString(bias.dtype()),
                           "; got ", tf::DataTypeString(kernel.dtype()));
  }
  if (num_classes > kMost) {
    return InvalidArgument("kernel must have fewer than 2^31 rows; got ", num_classes);
  }
  if (hidden.dim_size(1) != kernel.dim_size(1)) {
    return InvalidArgument("hidden must have as many columns as kernel: ", kernel.dim_size(1),
                           "; got ", hidden.dim_size(1));
  }
  if (bias.dim_size(0) != num_classes && bias.dim_size(0) != 0) {
    return InvalidArgument("bias must have one entry for each row of kernel: ", num_classes,
                           "; got ", bias.dim_size(0));
  }
  if (labels.dim_size(0) != hidden.dim_size(0)) {
    return InvalidArgument("labels must have as many rows as hidden: ", hidden.dim_size(0),
                           "; got ", labels.dim_size(0));
  }
  if (target_scores.shape() != labels.shape() && target_scores.shape() != tf::TensorShape({0, 0})) {
    return InvalidArgument("target_scores must be [B, K] as the labels, ",
                           labels.shape().DebugString(), ", or [0, 0] for none; got shape ",
                           target_scores.shape().DebugString());
  }
  if (k > num_classes) {
    return InvalidArgument("k must be at most num_classes, which is ", num_classes, "; got ", k);
  }
  *inputs = {};
  inputs->hidden = hidden.flat<float>().data();
  inputs->weights = {kernel.data(), bias.NumElements() > 0 ? bias.data() : nullptr,
                     kernel.dtype() == tf::DT_BFLOAT16, num_classes, kernel.dim_size(1)};
  inputs->labels = labels.flat<int64_t>().data();
  inputs->batch = hidden.dim_size(0);
  inputs->num_labels = labels.dim_size(1);
  inputs->k = k;
  inputs->shard = {0, 1, num_classes};
  const bool has_scores = target_scores.NumElements() > 0;
  inputs->target_scores = has_scores ? target_scores.flat<float>().data() : nullptr;
  return absl::OkStatus();
}

absl::Status GetClassShard(tf::OpKernelContext* context, int input, int64_t num_rows,
                           core::ClassShard* shard, int64_t* num_classes) {
  constexpr const char* kNames[] = {"first_class", "class_stride", "num_classes"};
  int64_t numbers[3];
  for (int i = 0; i < 3; ++i) {
    const tf::Tensor& tensor = context->input(input + i);
    if (tensor.dims() != 0) {
      return InvalidArgument(kNames[i], " must be a scalar; got shape ",
                             tensor.shape().DebugString());
    }
    numbers[i] = tensor.scalar<int64_t>()();
  }
  *shard = {numbers[0], numbers[1], num_rows};
  *num_classes = numbers[2];
  if (shard->first >= 0 && shard->stride >= 1 && *num_classes >= 0 &&
      (num_rows == 0 || (shard->first < *num_classes &&
                         (*num_classes - 1 - shard->first) / shard->stride >= num_rows - 1))) {
    return absl::OkStatus();
  }
  return InvalidArgument(
      "first_class, class_stride and num_classes must be such that each row r is ",
      "the class first_class + class_stride r in [0, num_classes); got ", shard->first, ", ",
      shard->stride, " and ", *num_classes, " for ", num_rows, " rows");
}

StreamedLogitsCall::StreamedLogitsCall(tf::OpKernelConstruction* context) {
  OP_REQUIRES_OK(context, context->GetAttr("k", &k_));
}

absl::Status StreamedLogitsCall::Get(tf::OpKernelContext* context, LockedVariables* variables,
                                     core::StreamedLogitsInputs* inputs,
                                     int64_t* num_classes) const {
  const bool is_variable = context->input_dtype(1) == tf::DT_RESOURCE;
  if (is_variable) {
    TF_RETURN_IF_ERROR(
        variables->Lock(context, {"kernel"}, LockedVariables::Mode::kShared, /*first_input=*/1));
  }
  const tf::Tensor& kernel = is_variable ? *variables->tensor(0) : context->input(1);
  TF_RETURN_IF_ERROR(GetStreamedLogits(context->input(0), kernel, context->input(2),
                                       context->input(3), context->input(4), k_, inputs));
  return GetClassShard(context, 5, kernel.dim_size(0), &inputs->shard, num_classes);
}

absl::Status StreamedLogitsCall::Allocate(tf::OpKernelContext* context,
                                          const core::StreamedLogitsInputs& inputs,
                                          core::StreamedLogitsOutputs* outputs) {
  const tf::TensorShape by_label({inputs.batch, inputs.num_labels});
  const tf::TensorShape by_rank({inputs.batch, inputs.k});
  tf::Tensor *logsumexp, *target_logits, *target_ranks, *top_scores, *top_ids;
  TF_RETURN_IF_ERROR(context->allocate_output(0, {inputs.batch}, &logsumexp));
  TF_RETURN_IF_ERROR(context->allocate_output(1, by_label, &target_logits));
  TF_RETURN_IF_ERROR(context->allocate_output(2, by_label, &target_ranks));
  TF_RETURN_IF_ERROR(context->allocate_output(3, by_rank, &top_scores));
  TF_RETURN_IF_ERROR(context->allocate_output(4, by_rank, &top_ids));
  *outputs = {logsumexp->flat<float>().data(),      target_logits->flat<float>().data(),
              target_ranks->flat<int64_t>().data(), top_scores->flat<float>().data(),
              top_ids->flat<int64_t>().data(),      nullptr};
  return absl::OkStatus();
}

}  // namespace tfx
