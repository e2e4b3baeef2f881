// SPDX-License-Identifier: Apache-2.0

#include "kernels/softmax_selection_op.h"

#include <algorithm>
#include <string>
#include <vector>

#include "kernels/candidate_checks.h"
#include "kernels/class_shard.h"
#include "kernels/invalid_argument.h"
#include "kernels/streamed_logits_checks.h"

namespace tfx {

namespace tf = tensorflow;

SoftmaxSelectionOp::SoftmaxSelectionOp(tf::OpKernelConstruction* context) : tf::OpKernel(context) {
  OP_REQUIRES_OK(context, context->GetAttr("num_biases", &num_biases_));
  OP_REQUIRES_OK(context, context->GetAttr("num_selected", &num_selected_));
  std::string products;
  OP_REQUIRES_OK(context, context->GetAttr("products", &products));
  rounds_ = products == "bfloat16";
  OP_REQUIRES_OK(context, context->GetAttr("dtype", &dtype_));
  OP_REQUIRES(context, num_biases_ <= 1,
              InvalidArgument("bias must be at most one variable; got ", num_biases_));
}

void SoftmaxSelectionOp::Compute(tf::OpKernelContext* context) {
  LockedVariables variables;
  std::vector<std::string> names = {"kernel"};
  if (num_biases_ > 0) names.push_back("bias");
  OP_REQUIRES_OK(context, variables.Lock(context, names, LockedVariables::Mode::kShared));
  SoftmaxSelectionArguments arguments;
  OP_REQUIRES_OK(context, Read(context, variables, &arguments));
  tf::Tensor *logsumexp, *target_logits;
  OP_REQUIRES_OK(context, context->allocate_output(0, {arguments.inputs.batch}, &logsumexp));
  OP_REQUIRES_OK(context, context->allocate_output(1, arguments.labels->shape(), &target_logits));
  core::StreamedLogitsOutputs outputs = {};
  outputs.logsumexp = logsumexp->flat<float>().data();
  outputs.target_logits = target_logits->flat<float>().data();
  OP_REQUIRES_OK(context, Run(context, arguments, outputs));
}

absl::Status SoftmaxSelectionOp::Read(tf::OpKernelContext* context,
                                      const LockedVariables& variables,
                                      SoftmaxSelectionArguments* arguments) const {
  const tf::Tensor& kernel = *variables.tensor(0);
  const tf::Tensor bias = num_biases_ > 0 ? *variables.tensor(1) : tf::Tensor(dtype_, {0});
  const tf::Tensor& hidden = context->input(variables.size());
  const tf::Tensor& labels = context->input(variables.size() + 1);
  const tf::Tensor& seed = context->input(variables.size() + 2);
  const tf::Tensor no_scores(tf::DT_FLOAT, {0, 0});
  TF_RETURN_IF_ERROR(CheckLayerShapes(kernel, num_biases_ > 0 ? &bias : nullptr, dtype_));
  TF_RETURN_IF_ERROR(CheckStreamedLogits(hidden, kernel, bias, labels, no_scores, 0));
  *arguments = {};
  core::StreamedLogitsInputs& inputs = arguments->inputs;
  int64_t& num_classes = arguments->num_classes;
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
  inputs.hidden = hidden.flat<float>().data();
  inputs.kernel = kernel.data();
  inputs.bias = num_biases_ > 0 ? bias.data() : nullptr;
  inputs.is_bfloat16 = dtype_ == tf::DT_BFLOAT16;
  inputs.rounds = rounds_;
  inputs.labels = labels.flat<int64_t>().data();
  inputs.batch = hidden.dim_size(0);
  inputs.width = hidden.dim_size(1);
  inputs.num_classes = kernel.dim_size(0);
  inputs.num_labels = labels.dim_size(1);
  arguments->hidden = &hidden;
  arguments->labels = &labels;
  arguments->seed = &seed;
  return absl::OkStatus();
}

}  // namespace tfx
