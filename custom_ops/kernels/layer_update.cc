// SPDX-License-Identifier: Apache-2.0

#include "kernels/layer_update.h"

namespace tfx {

namespace tf = tensorflow;

core::LayerWeights WeightsOf(const LockedVariables& variables, int num_biases) {
  const tf::Tensor& kernel = *variables.tensor(0);
  return {kernel.data(), num_biases == 0 ? nullptr : variables.tensor(1)->data(),
          kernel.dtype() == tf::DT_BFLOAT16, kernel.dim_size(0), kernel.dim_size(1)};
}

absl::Status LayerUpdate::ReadAttributes(tf::OpKernelConstruction* context) {
  TF_RETURN_IF_ERROR(context->GetAttr("num_biases", &num_biases_));
  TF_RETURN_IF_ERROR(context->GetAttr("num_kernel_slots", &num_kernel_slots_));
  TF_RETURN_IF_ERROR(context->GetAttr("num_bias_slots", &num_bias_slots_));
  TF_RETURN_IF_ERROR(context->GetAttr("method", &method_));
  return context->GetAttr("update", &update_);
}

std::vector<std::string> LayerUpdate::Names() const {
  std::vector<std::string> names = {"kernel"};
  if (num_biases_ > 0) names.push_back("bias");
  for (int i = 0; i < num_kernel_slots_; ++i) names.push_back(absl::StrCat("kernel_slots ", i));
  for (int i = 0; i < num_bias_slots_; ++i) names.push_back(absl::StrCat("bias_slots ", i));
  return names;
}

absl::Status LayerUpdate::Set(tf::OpKernelContext* context, const LockedVariables& variables,
                              int learning_rate) {
  TF_RETURN_IF_ERROR(
      rule_.Set(method_, context->input(learning_rate + 1), context->input(learning_rate)));
  return CheckSlots(variables);
}

absl::Status LayerUpdate::SetForDeviceRate(tf::OpKernelContext* context,
                                           const LockedVariables& variables, int learning_rate) {
  TF_RETURN_IF_ERROR(rule_.SetForDeviceRate(method_, context->input(learning_rate + 1),
                                            context->input(learning_rate)));
  return CheckSlots(variables);
}

absl::Status LayerUpdate::CheckSlots(const LockedVariables& variables) const {
  TF_RETURN_IF_ERROR(rule_.CheckSlots(variables, 0, KernelSlot(), num_kernel_slots_));
  if (num_biases_ == 0) return absl::OkStatus();
  return rule_.CheckSlots(variables, 1, BiasSlot(), num_bias_slots_);
}

absl::Status LayerUpdate::Own(LockedVariables* variables) const {
  for (int i = 0; update_ && i < variables->size(); ++i) TF_RETURN_IF_ERROR(variables->Own(i));
  return absl::OkStatus();
}

core::LayerRows LayerUpdate::Rows(const LockedVariables& variables) const {
  core::LayerRows rows = {rule_.Rows(variables, 0, KernelSlot()), {}};
  if (num_biases_ > 0) rows.bias = rule_.Rows(variables, 1, BiasSlot());
  return rows;
}

std::optional<core::RowUpdater> LayerUpdate::Updater(const core::RowKernels& kernels) const {
  if (!update_) return std::nullopt;
  return rule_.Updater(kernels);
}

std::optional<core::gpu::RowRule> LayerUpdate::RuleOnGpu(const float* learning_rate) const {
  if (!update_) return std::nullopt;
  return rule_.OnGpu(learning_rate);
}

}  // namespace tfx
