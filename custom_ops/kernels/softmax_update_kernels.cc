// SPDX-License-Identifier: Apache-2.0

#include "core/softmax_update.h"
#include "kernels/check_values.h"
#include "kernels/cpu_op.h"
#include "kernels/locked_variables.h"
#include "kernels/softmax_update_op.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tfx {
namespace {

namespace tf = tensorflow;

class SoftmaxUpdateOp : public CpuOp {
 public:
  explicit SoftmaxUpdateOp(tf::OpKernelConstruction* context) : CpuOp(context) {
    OP_REQUIRES_OK(context, arguments_.ReadAttributes(context));
  }

 protected:
  absl::Status Run(tf::OpKernelContext* context, core::Execution execution) const override {
    SoftmaxUpdateArguments arguments = arguments_;
    LockedVariables variables;
    TF_RETURN_IF_ERROR(arguments.Lock(context, &variables));
    TF_RETURN_IF_ERROR(CheckNumbers(context, variables, execution));
    tf::Tensor* hidden_gradient;
    const tf::Tensor& hidden = context->input(variables.size());
    TF_RETURN_IF_ERROR(context->allocate_output(0, hidden.shape(), &hidden_gradient));
    TF_RETURN_IF_ERROR(arguments.Own(&variables));
    const auto updater = arguments.Updater(execution.rows);
    core::SoftmaxUpdate(arguments.layer().Weights(variables), arguments.Rows(variables),
                        arguments.Batch(context, variables),
                        updater.has_value() ? &*updater : nullptr, execution,
                        hidden_gradient->flat<float>().data());
    return absl::OkStatus();
  }

 private:
  static absl::Status CheckNumbers(tf::OpKernelContext* context, const LockedVariables& variables,
                                   const core::Execution& execution) {
    using Arguments = SoftmaxUpdateArguments;
    const auto get = [&](Arguments::Input input) -> const tf::Tensor& {
      return Arguments::Get(context, variables, input);
    };
    const core::DenseKernels<float>& dense = execution.dense;
    const tf::Tensor& labels = get(Arguments::kLabels);
    const int64_t num_classes = variables.tensor(0)->dim_size(0);
    TF_RETURN_IF_ERROR(CheckLabels(labels, num_classes, execution.rows));
    TF_RETURN_IF_ERROR(CheckFinite("hidden", get(Arguments::kHidden), dense));
    TF_RETURN_IF_ERROR(CheckFinite("logsumexp", get(Arguments::kLogsumexp), dense));
    TF_RETURN_IF_ERROR(
        CheckFinite("logsumexp_gradient", get(Arguments::kLogsumexpGradient), dense));
    TF_RETURN_IF_ERROR(CheckFinite("mean_gradient", get(Arguments::kMeanGradient), dense));
    return CheckGradient("target_gradient", get(Arguments::kTargetGradient), labels, execution);
  }

  SoftmaxUpdateArguments arguments_;  // the attributes
};

REGISTER_KERNEL_BUILDER(Name("TfxSoftmaxUpdate").Device(tf::DEVICE_CPU), SoftmaxUpdateOp);

}  // namespace
}  // namespace tfx
