// SPDX-License-Identifier: Apache-2.0

#include "kernels/softmax_update_op.h"

#include <string>
#include <utility>

#include "kernels/candidate_op.h"
#include "kernels/invalid_argument.h"

namespace tfx {

namespace tf = tensorflow;

absl::Status SoftmaxUpdateArguments::ReadAttributes(tf::OpKernelConstruction* context) {
  std::string products;
  TF_RETURN_IF_ERROR(context->GetAttr("products", &products));
  rounds_ = products == "bfloat16";
  return LayerUpdate::ReadAttributes(context);
}

absl::Status SoftmaxUpdateArguments::Lock(tf::OpKernelContext* context,
                                          LockedVariables* variables) {
  TF_RETURN_IF_ERROR(LayerUpdate::Lock(context, variables));
  TF_RETURN_IF_ERROR(CheckShapes(context, *variables));
  return Set(context, *variables, variables->size() + kLearningRate);
}

absl::Status SoftmaxUpdateArguments::CheckShapes(tf::OpKernelContext* context,
                                                 const LockedVariables& variables) {
  const auto get = [&](Input input) -> const tf::Tensor& { return Get(context, variables, input); };
  const tf::Tensor &hidden = get(kHidden), &labels = get(kLabels),
                   &target_gradient = get(kTargetGradient), &mean_gradient = get(kMeanGradient);
  const tf::Tensor no_candidates(tf::DT_INT64, {0});
  TF_RETURN_IF_ERROR(
      CheckBatchShapes(hidden, labels, no_candidates, variables.tensor(0)->dim_size(1)));
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
