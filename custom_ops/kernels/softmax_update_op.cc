// SPDX-License-Identifier: Apache-2.0

#include "kernels/softmax_update_op.h"

#include <string>

#include "kernels/candidate_checks.h"
#include "kernels/invalid_argument.h"

namespace tfx {

namespace tf = tensorflow;

absl::Status SoftmaxUpdateArguments::ReadAttributes(tf::OpKernelConstruction* context) {
  TF_RETURN_IF_ERROR(context->GetAttr("num_biases", &num_biases_));
  TF_RETURN_IF_ERROR(layer_.ReadAttributes(context));
  TF_RETURN_IF_ERROR(context->GetAttr("dtype", &dtype_));
  std::string products;
  TF_RETURN_IF_ERROR(context->GetAttr("products", &products));
  rounds_ = products == "bfloat16";
  if (num_biases_ <= 1) return absl::OkStatus();
  return InvalidArgument("bias must be at most one variable; got ", num_biases_);
}

absl::Status SoftmaxUpdateArguments::Lock(tf::OpKernelContext* context,
                                          LockedVariables* variables) {
  TF_RETURN_IF_ERROR(variables->Lock(context, layer_.Names(), layer_.LockMode()));
  TF_RETURN_IF_ERROR(CheckShapes(context, *variables));
  const int rate = variables->size() + kLearningRate;
  return context->op_device_context() == nullptr
             ? layer_.Set(context, *variables, rate)
             : layer_.SetForDeviceRate(context, *variables, rate);
}

absl::Status SoftmaxUpdateArguments::CheckShapes(tf::OpKernelContext* context,
                                                 const LockedVariables& variables) const {
  const auto get = [&](Input input) -> const tf::Tensor& { return Get(context, variables, input); };
  const tf::Tensor& kernel = *variables.tensor(0);
  const tf::Tensor &hidden = get(kHidden), &labels = get(kLabels),
                   &target_gradient = get(kTargetGradient), &mean_gradient = get(kMeanGradient);
  const tf::Tensor no_candidates(tf::DT_INT64, {0});
  TF_RETURN_IF_ERROR(
      CheckLayerShapes(kernel, num_biases_ > 0 ? variables.tensor(1) : nullptr, dtype_));
  TF_RETURN_IF_ERROR(CheckBatchShapes(hidden, labels, no_candidates, kernel.dim_size(1)));
  for (const auto& [name, value] : {std::pair("logsumexp", &get(kLogsumexp)),
                                    std::pair("logsumexp_gradient", &get(kLogsumexpGradient))}) {
    if (value->shape() == tf::TensorShape({hidden.dim_size(0)})) continue;
    return InvalidArgument(name, " must be [B] with the B of hidden, ", hidden.dim_size(0),
                           "; got shape ", value->shape().DebugString());
  }
  if (mean_gradient.shape() != tf::TensorShape({0}) &&
      mean_gradient.shape() != tf::TensorShape({hidden.dim_size(0)})) {
    return InvalidArgument("mean_gradient must be [B] with the B of hidden, ", hidden.dim_size(0),
                           ", or [0]; got shape ", mean_gradient.shape().DebugString());
  }
  if (target_gradient.shape() == labels.shape()) return absl::OkStatus();
  return InvalidArgument("target_gradient must be [B, K] as labels, ", labels.shape().DebugString(),
                         "; got shape ", target_gradient.shape().DebugString());
}

core::SoftmaxBatch SoftmaxUpdateArguments::Batch(tf::OpKernelContext* context,
                                                 const LockedVariables& variables) const {
  const auto floats = [&](Input input) {
    return Get(context, variables, input).flat<float>().data();
  };
  const tf::Tensor &hidden = Get(context, variables, kHidden),
                   &labels = Get(context, variables, kLabels),
                   &mean = Get(context, variables, kMeanGradient);
  return {floats(kHidden),
          labels.flat<int64_t>().data(),
          floats(kLogsumexp),
          floats(kTargetGradient),
          floats(kLogsumexpGradient),
          mean.NumElements() == 0 ? nullptr : floats(kMeanGradient),
          hidden.dim_size(0),
          labels.dim_size(1),
          rounds_};
}

}  // namespace tfx
