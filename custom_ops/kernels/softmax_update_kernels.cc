// SPDX-License-Identifier: Apache-2.0

#include <cstdint>
#include <string>
#include <vector>

#include "core/softmax_update.h"
#include "kernels/candidate_checks.h"
#include "kernels/check_ids.h"
#include "kernels/cpu_op.h"
#include "kernels/invalid_argument.h"
#include "kernels/layer_weights.h"
#include "kernels/locked_variables.h"
#include "kernels/row_rule.h"
#include "kernels/streamed_logits_checks.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tfx {
namespace {

namespace tf = tensorflow;

absl::Status CheckFinite(const char* name, const tf::Tensor& values,
                         const core::Execution& execution) {
  if (execution.dense.all_finite(values.flat<float>().data(), values.NumElements())) {
    return absl::OkStatus();
  }
  return InvalidArgument(name, " must be finite; got an infinite or NaN number");
}

class SoftmaxUpdateOp : public CpuOp {
 public:
  explicit SoftmaxUpdateOp(tf::OpKernelConstruction* context) : CpuOp(context) {
    OP_REQUIRES_OK(context, context->GetAttr("num_biases", &num_biases_));
    OP_REQUIRES_OK(context, context->GetAttr("num_kernel_slots", &num_kernel_slots_));
    OP_REQUIRES_OK(context, context->GetAttr("num_bias_slots", &num_bias_slots_));
    OP_REQUIRES_OK(context, context->GetAttr("method", &method_));
    OP_REQUIRES_OK(context, context->GetAttr("update", &update_));
    OP_REQUIRES_OK(context, context->GetAttr("dtype", &dtype_));
    std::string products;
    OP_REQUIRES_OK(context, context->GetAttr("products", &products));
    rounds_ = products == "bfloat16";
    OP_REQUIRES(context, num_biases_ <= 1,
                InvalidArgument("bias must be at most one variable; got ", num_biases_));
  }

 protected:
  absl::Status Run(tf::OpKernelContext* context, core::Execution execution) override {
    LockedVariables variables;
    TF_RETURN_IF_ERROR(variables.Lock(context, Names(), LockedVariables::Mode::kExclusive));
    TF_RETURN_IF_ERROR(Check(context, variables, execution));
    const int first = variables.size();
    const tf::Tensor &hidden = context->input(first), &labels = context->input(first + 1);
    tf::Tensor* hidden_gradient;
    TF_RETURN_IF_ERROR(context->allocate_output(0, hidden.shape(), &hidden_gradient));
    for (int i = 0; update_ && i < variables.size(); ++i) TF_RETURN_IF_ERROR(variables.Own(i));
    core::LayerRows rows = {rule_.Rows(variables, 0, KernelSlot()), {}};
    if (num_biases_ > 0) rows.bias = rule_.Rows(variables, 1, BiasSlot());
    const core::SoftmaxBatch batch = {hidden.flat<float>().data(),
                                      labels.flat<int64_t>().data(),
                                      context->input(first + 2).flat<float>().data(),
                                      context->input(first + 3).flat<float>().data(),
                                      context->input(first + 4).flat<float>().data(),
                                      hidden.dim_size(0),
                                      labels.dim_size(1),
                                      rounds_};
    const core::RowUpdater updater = rule_.Updater(execution.rows);
    core::SoftmaxUpdate(WeightsOf(variables, num_biases_), rows, batch,
                        update_ ? &updater : nullptr, execution,
                        hidden_gradient->flat<float>().data());
    return absl::OkStatus();
  }

 private:
  int KernelSlot() const { return 1 + num_biases_; }
  int BiasSlot() const { return KernelSlot() + num_kernel_slots_; }

  std::vector<std::string> Names() const {
    std::vector<std::string> names = {"kernel"};
    if (num_biases_ > 0) names.push_back("bias");
    for (int i = 0; i < num_kernel_slots_; ++i) names.push_back(absl::StrCat("kernel_slots ", i));
    for (int i = 0; i < num_bias_slots_; ++i) names.push_back(absl::StrCat("bias_slots ", i));
    return names;
  }

  absl::Status Check(tf::OpKernelContext* context, const LockedVariables& variables,
                     const core::Execution& execution) {
    const int first = variables.size();
    const tf::Tensor& kernel = *variables.tensor(0);
    const tf::Tensor bias = num_biases_ > 0 ? *variables.tensor(1) : tf::Tensor(dtype_, {0});
    const tf::Tensor &hidden = context->input(first), &labels = context->input(first + 1),
                     &logsumexp = context->input(first + 2),
                     &target_gradient = context->input(first + 3),
                     &logsumexp_gradient = context->input(first + 4);
    const tf::Tensor no_scores(tf::DT_FLOAT, {0, 0});
    TF_RETURN_IF_ERROR(CheckLayerShapes(kernel, num_biases_ > 0 ? &bias : nullptr, dtype_));
    TF_RETURN_IF_ERROR(CheckStreamedLogits(hidden, kernel, bias, labels, no_scores, 0));
    for (const auto& [name, value] : {std::pair("logsumexp", &logsumexp),
                                      std::pair("logsumexp_gradient", &logsumexp_gradient)}) {
      if (value->shape() == tf::TensorShape({hidden.dim_size(0)})) continue;
      return InvalidArgument(name, " must be [B] with the B of hidden, ", hidden.dim_size(0),
                             "; got shape ", value->shape().DebugString());
    }
    if (target_gradient.shape() != labels.shape()) {
      return InvalidArgument("target_gradient must be [B, K] as labels, ",
                             labels.shape().DebugString(), "; got shape ",
                             target_gradient.shape().DebugString());
    }
    TF_RETURN_IF_ERROR(rule_.Set(method_, context->input(first + 6), context->input(first + 5)));
    TF_RETURN_IF_ERROR(rule_.CheckSlots(variables, 0, KernelSlot(), num_kernel_slots_));
    if (num_biases_ > 0) {
      TF_RETURN_IF_ERROR(rule_.CheckSlots(variables, 1, BiasSlot(), num_bias_slots_));
    }
    TF_RETURN_IF_ERROR(CheckLabels(labels, kernel.dim_size(0), execution.rows));
    TF_RETURN_IF_ERROR(CheckFinite("hidden", hidden, execution));
    TF_RETURN_IF_ERROR(CheckFinite("logsumexp", logsumexp, execution));
    TF_RETURN_IF_ERROR(CheckFinite("logsumexp_gradient", logsumexp_gradient, execution));
    return CheckGradient("target_gradient", target_gradient, labels, execution);
  }

  int num_biases_, num_kernel_slots_, num_bias_slots_;
  std::string method_;
  bool update_, rounds_;
  tf::DataType dtype_;
  RowRule rule_;  // used under the lock of Compute
};

REGISTER_KERNEL_BUILDER(Name("TfxSoftmaxUpdate").Device(tf::DEVICE_CPU), SoftmaxUpdateOp);

}  // namespace
}  // namespace tfx
