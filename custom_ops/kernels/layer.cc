// SPDX-License-Identifier: Apache-2.0

#include "kernels/layer.h"

#include <limits>

#include "kernels/invalid_argument.h"

namespace tfx {

namespace tf = tensorflow;

absl::Status Layer::ReadAttributes(tf::OpKernelConstruction* context) {
  TF_RETURN_IF_ERROR(context->GetAttr("num_biases", &num_biases_));
  TF_RETURN_IF_ERROR(context->GetAttr("dtype", &dtype_));
  if (num_biases_ <= 1) return absl::OkStatus();
  return InvalidArgument("bias must be at most one variable; got ", num_biases_);
}

std::vector<std::string> Layer::Names() const {
  return num_biases_ == 0 ? std::vector<std::string>{"kernel"}
                          : std::vector<std::string>{"kernel", "bias"};
}

absl::Status Layer::CheckShapes(const LockedVariables& variables, int kernel_at) const {
  const tf::Tensor& kernel = *variables.tensor(kernel_at);
  if (kernel.dtype() != dtype_ || kernel.dims() != 2 || kernel.dim_size(0) < 1 ||
      kernel.dim_size(0) > std::numeric_limits<int32_t>::max()) {
    return InvalidArgument("kernel must be ", tf::DataTypeString(dtype_),
                           " [C, D] with C at least 1 and below 2^31; got ",
                           tf::DataTypeString(kernel.dtype()), " of shape ",
                           kernel.shape().DebugString());
  }
  if (num_biases_ == 0) return absl::OkStatus();
  const tf::Tensor& bias = *variables.tensor(kernel_at + 1);
  if (bias.dtype() == dtype_ && bias.shape() == tf::TensorShape({kernel.dim_size(0)})) {
    return absl::OkStatus();
  }
  return InvalidArgument("bias must be ", tf::DataTypeString(dtype_), " [C] with the C of kernel, ",
                         kernel.dim_size(0), "; got ", tf::DataTypeString(bias.dtype()),
                         " of shape ", bias.shape().DebugString());
}

core::LayerWeights Layer::Weights(const LockedVariables& variables, int kernel_at) const {
  const tf::Tensor& kernel = *variables.tensor(kernel_at);
  return {kernel.data(), num_biases_ == 0 ? nullptr : variables.tensor(kernel_at + 1)->data(),
          kernel.dtype() == tf::DT_BFLOAT16, kernel.dim_size(0), kernel.dim_size(1)};
}

absl::Status LayerUpdate::ReadAttributes(tf::OpKernelConstruction* context) {
  TF_RETURN_IF_ERROR(layer_.ReadAttributes(context));
  TF_RETURN_IF_ERROR(context->GetAttr("num_kernel_slots", &num_kernel_slots_));
  TF_RETURN_IF_ERROR(context->GetAttr("num_bias_slots", &num_bias_slots_));
  TF_RETURN_IF_ERROR(context->GetAttr("method", &method_));
  return context->GetAttr("update", &update_);
}

absl::Status LayerUpdate::Lock(tf::OpKernelContext* context, LockedVariables* variables) const {
  std::vector<std::string> names = layer_.Names();
  for (int i = 0; i < num_kernel_slots_; ++i) names.push_back(absl::StrCat("kernel_slots ", i));
  for (int i = 0; i < num_bias_slots_; ++i) names.push_back(absl::StrCat("bias_slots ", i));
  TF_RETURN_IF_ERROR(variables->Lock(
      context, names,
      update_ ? LockedVariables::Mode::kExclusive : LockedVariables::Mode::kShared));
  return layer_.CheckShapes(*variables);
}

absl::Status LayerUpdate::Set(tf::OpKernelContext* context, const LockedVariables& variables,
                              int learning_rate) {
  const bool is_on_host = context->op_device_context() == nullptr;
  TF_RETURN_IF_ERROR(rule_.Set(method_, context->input(learning_rate + 1),
                               context->input(learning_rate), is_on_host));
  TF_RETURN_IF_ERROR(rule_.CheckSlots(variables, 0, KernelSlot(), num_kernel_slots_));
  if (layer_.num_biases() == 0) return absl::OkStatus();
  return rule_.CheckSlots(variables, 1, BiasSlot(), num_bias_slots_);
}

absl::Status LayerUpdate::Own(LockedVariables* variables) const {
  return update_ ? variables->OwnAll() : absl::OkStatus();
}

core::LayerRows LayerUpdate::Rows(const LockedVariables& variables) const {
  core::LayerRows rows = {rule_.Rows(variables, 0, KernelSlot()), {}};
  if (layer_.num_biases() > 0) rows.bias = rule_.Rows(variables, 1, BiasSlot());
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
