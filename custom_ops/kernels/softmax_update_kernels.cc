// SPDX-License-Identifier: Apache-2.0

#include <cstdint>
#include <string>
#include <vector>

#include "core/softmax_update.h"
#include "kernels/candidate_checks.h"
#include "kernels/check_values.h"
#include "kernels/cpu_op.h"
#include "kernels/invalid_argument.h"
#include "kernels/layer_update.h"
#include "kernels/locked_variables.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tfx {
namespace {

namespace tf = tensorflow;

class SoftmaxUpdateOp : public CpuOp {
 public:
  explicit SoftmaxUpdateOp(tf::OpKernelConstruction* context) : CpuOp(context) {
    OP_REQUIRES_OK(context, context->GetAttr("num_biases", &num_biases_));
    OP_REQUIRES_OK(context, layer_.ReadAttributes(context));
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
    TF_RETURN_IF_ERROR(variables.Lock(context, layer_.Names(), LockedVariables::Mode::kExclusive));
    TF_RETURN_IF_ERROR(Check(context, variables, execution));
    const int first = variables.size();
    const tf::Tensor &hidden = context->input(first), &labels = context->input(first + 1),
                     &mean = context->input(first + 5);
    tf::Tensor* hidden_gradient;
    TF_RETURN_IF_ERROR(context->allocate_output(0, hidden.shape(), &hidden_gradient));
    TF_RETURN_IF_ERROR(layer_.Own(&variables));
    const core::SoftmaxBatch batch = {hidden.flat<float>().data(),
                                      labels.flat<int64_t>().data(),
                                      context->input(first + 2).flat<float>().data(),
                                      context->input(first + 3).flat<float>().data(),
                                      context->input(first + 4).flat<float>().data(),
                                      mean.NumElements() == 0 ? nullptr : mean.flat<float>().data(),
                                      hidden.dim_size(0),
                                      labels.dim_size(1),
                                      rounds_};
    const auto updater = layer_.Updater(execution.rows);
    core::SoftmaxUpdate(WeightsOf(variables, num_biases_), layer_.Rows(variables), batch,
                        updater.has_value() ? &*updater : nullptr, execution,
                        hidden_gradient->flat<float>().data());
    return absl::OkStatus();
  }

 private:
  absl::Status Check(tf::OpKernelContext* context, const LockedVariables& variables,
                     const core::Execution& execution) {
    const int first = variables.size();
    const tf::Tensor& kernel = *variables.tensor(0);
    const tf::Tensor &hidden = context->input(first), &labels = context->input(first + 1),
                     &logsumexp = context->input(first + 2),
                     &target_gradient = context->input(first + 3),
                     &logsumexp_gradient = context->input(first + 4),
                     &mean_gradient = context->input(first + 5);
    const tf::Tensor no_candidates(tf::DT_INT64, {0});
    TF_RETURN_IF_ERROR(
        CheckLayerShapes(kernel, num_biases_ > 0 ? variables.tensor(1) : nullptr, dtype_));
    TF_RETURN_IF_ERROR(CheckBatchShapes(hidden, labels, no_candidates, kernel.dim_size(1)));
    for (const auto& [name, value] : {std::pair("logsumexp", &logsumexp),
                                      std::pair("logsumexp_gradient", &logsumexp_gradient)}) {
      if (value->shape() == tf::TensorShape({hidden.dim_size(0)})) continue;
      return InvalidArgument(name, " must be [B] with the B of hidden, ", hidden.dim_size(0),
                             "; got shape ", value->shape().DebugString());
    }
    if (mean_gradient.shape() != tf::TensorShape({0}) &&
        mean_gradient.shape() != tf::TensorShape({hidden.dim_size(0)})) {
      return InvalidArgument("mean_gradient must be [B] with the B of hidden, ", hidden.dim_size(0),
                             ", or [0]; got shape ", mean_gradient.shape().DebugString());
    }
    if (target_gradient.shape() != labels.shape()) {
      return InvalidArgument("target_gradient must be [B, K] as labels, ",
                             labels.shape().DebugString(), "; got shape ",
                             target_gradient.shape().DebugString());
    }
    TF_RETURN_IF_ERROR(layer_.Set(context, variables, first + 6));
    TF_RETURN_IF_ERROR(CheckLabels(labels, kernel.dim_size(0), execution.rows));
    TF_RETURN_IF_ERROR(CheckFinite("hidden", hidden, execution.dense));
    TF_RETURN_IF_ERROR(CheckFinite("logsumexp", logsumexp, execution.dense));
    TF_RETURN_IF_ERROR(CheckFinite("logsumexp_gradient", logsumexp_gradient, execution.dense));
    TF_RETURN_IF_ERROR(CheckFinite("mean_gradient", mean_gradient, execution.dense));
    return CheckGradient("target_gradient", target_gradient, labels, execution);
  }

  int num_biases_;
  bool rounds_;
  tf::DataType dtype_;
  LayerUpdate layer_;  // used under the lock of Compute
};

REGISTER_KERNEL_BUILDER(Name("TfxSoftmaxUpdate").Device(tf::DEVICE_CPU), SoftmaxUpdateOp);

}  // namespace
}  // namespace tfx
