// SPDX-License-Identifier: Apache-2.0

#include "kernels/softmax_selection_op.h"

#include <algorithm>
#include <string>

#include "kernels/invalid_argument.h"
#include "kernels/streamed_logits_op.h"

namespace tfx {

namespace tf = tensorflow;

SoftmaxSelectionCall::SoftmaxSelectionCall(tf::OpKernelConstruction* context) {
  OP_REQUIRES_OK(context, layer_.ReadAttributes(context));
  OP_REQUIRES_OK(context, context->GetAttr("num_selected", &num_selected_));
  std::string products;
  OP_REQUIRES_OK(context, context->GetAttr("products", &products));
  rounds_ = products == "bfloat16";
}

absl::Status SoftmaxSelectionCall::Get(tf::OpKernelContext* context,
                                       SoftmaxSelectionArguments* arguments) const {
  LockedVariables& variables = arguments->variables;
  TF_RETURN_IF_ERROR(variables.Lock(context, layer_.Names(), LockedVariables::Mode::kShared));
  TF_RETURN_IF_ERROR(layer_.CheckShapes(variables));
  const tf::Tensor& kernel = *variables.tensor(0);
  const tf::Tensor bias =
      layer_.num_biases() > 0 ? *variables.tensor(1) : tf::Tensor(kernel.dtype(), {0});
  const tf::Tensor& hidden = context->input(variables.size());
  const tf::Tensor& labels = context->input(variables.size() + 1);
  const tf::Tensor& seed = context->input(variables.size() + 2);
  const tf::Tensor no_scores(tf::DT_FLOAT, {0, 0});
  core::StreamedLogitsInputs& inputs = arguments->inputs;
  int64_t& num_classes = arguments->num_classes;
  TF_RETURN_IF_ERROR(GetStreamedLogits(hidden, kernel, bias, labels, no_scores, 0, &inputs));
  TF_RETURN_IF_ERROR(GetClassShard(context, variables.size() + 3, kernel.dim_size(0), &inputs.shard,
                                   &num_classes));
  if (seed.shape() != tf::TensorShape({2})) {
    return InvalidArgument("seed must be [2]; got shape ", seed.shape().DebugString());
  }
  if (num_selected_ > num_classes) {
    return InvalidArgument("num_selected must be in [0, C], C = ", num_classes, "; got ",
                           num_selected_);
  }
  const bool keeps_all = num_selected_ == num_classes;
  arguments->rule.epsilon = keeps_all ? 0.0f : 1.0f / std::max<int64_t>(num_selected_, 1);
  arguments->rule.num_expected = num_selected_;
  inputs.rounds = rounds_;
  arguments->hidden = &hidden;
  arguments->labels = &labels;
  arguments->seed = &seed;
  tf::Tensor *logsumexp, *target_logits;
  TF_RETURN_IF_ERROR(context->allocate_output(0, {inputs.batch}, &logsumexp));
  TF_RETURN_IF_ERROR(context->allocate_output(1, labels.shape(), &target_logits));
  arguments->outputs = {};
  arguments->outputs.logsumexp = logsumexp->flat<float>().data();
  arguments->outputs.target_logits = target_logits->flat<float>().data();
  return absl::OkStatus();
}

}  // namespace tfx
