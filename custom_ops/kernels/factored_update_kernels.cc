// SPDX-License-Identifier: Apache-2.0

#include <cmath>

#include "core/factored_update.h"
#include "kernels/check_values.h"
#include "kernels/factored_op.h"
#include "kernels/invalid_argument.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tfx {
namespace {

namespace tf = tensorflow;

template <typename T>
class FactoredUpdateOp : public FactoredOp<T> {
 public:
  explicit FactoredUpdateOp(tf::OpKernelConstruction* context) : FactoredOp<T>(context) {
    OP_REQUIRES_OK(context, context->GetAttr("update", &update_));
    OP_REQUIRES_OK(context, context->GetAttr("max_condition", &max_condition_));
    OP_REQUIRES(context, !std::isnan(max_condition_),
                InvalidArgument("max_condition must be a number; got ", max_condition_));
  }

 protected:
  bool Updates() const override { return update_; }

  absl::Status Run(tf::OpKernelContext* context, FactoredVariables<T>& variables,
                   const core::DenseExecution<T>& execution) const override {
    const tf::Tensor& hidden = context->input(kFirstInput);
    const tf::Tensor& labels = context->input(kFirstInput + 1);
    TF_RETURN_IF_ERROR(variables.CheckBatch(hidden, labels, execution));
    TF_RETURN_IF_ERROR(CheckGradients(context, execution));
    core::FactoredRates<T> rates;
    TF_RETURN_IF_ERROR(GetRates(context, &rates));
    tf::Tensor* hidden_gradient;
    TF_RETURN_IF_ERROR(context->allocate_output(0, hidden.shape(), &hidden_gradient));
    if (update_) TF_RETURN_IF_ERROR(variables.OwnEverything());
    const core::FactoredOutcome outcome = core::FactoredUpdate<T>(
        variables.State(), BatchOf<T>(hidden, labels), FactoredGradientsOf<T>(context), rates,
        update_, execution, hidden_gradient->flat<T>().data());
    if (!outcome.diverges) return absl::OkStatus();
    return DivergenceError(rates.learning_rate, rates.weight_decay, outcome.lambda_max);
  }

 private:
  static absl::Status CheckGradients(tf::OpKernelContext* context,
                                     const core::DenseExecution<T>& execution) {
    TF_RETURN_IF_ERROR(CheckFactoredGradients(context));
    for (int i = 0; i < 5; ++i) {
      TF_RETURN_IF_ERROR(CheckFinite<T>(kFactoredGradients[i], context->input(kFirstInput + 2 + i),
                                        execution.kernels));
    }
    return absl::OkStatus();
  }

  absl::Status GetRates(tf::OpKernelContext* context, core::FactoredRates<T>* rates) const {
    const tf::Tensor& learning_rate = context->input(kFirstInput + 7);
    const tf::Tensor& weight_decay = context->input(kFirstInput + 8);
    const T eta = learning_rate.scalar<T>()(), decay = weight_decay.scalar<T>()();
    if (!(eta >= 0) || !std::isfinite(eta)) {
      return LearningRateError(eta);
    }
    if (!(decay >= 0) || !(eta * decay < 1)) {
      return WeightDecayError(eta, decay);
    }
    *rates = {eta, decay, static_cast<T>(max_condition_)};
    return absl::OkStatus();
  }

  bool update_;
  float max_condition_;
};

TFX_REGISTER_FACTORED(FactoredUpdate);

}  // namespace
}  // namespace tfx
