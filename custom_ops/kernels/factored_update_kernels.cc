// SPDX-License-Identifier: Apache-2.0

#include <cmath>
#include <cstdint>
#include <limits>

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
    const T* target_sums = nullptr;
    TF_RETURN_IF_ERROR(GetTargetSums(context, variables, execution, &target_sums));
    TF_RETURN_IF_ERROR(variables.CheckBatch(hidden, labels, execution));
    TF_RETURN_IF_ERROR(CheckGradients(context, execution));
    core::FactoredRates<T> rates;
    TF_RETURN_IF_ERROR(GetRates(context, &rates));
    tf::Tensor* hidden_gradient;
    TF_RETURN_IF_ERROR(context->allocate_output(0, hidden.shape(), &hidden_gradient));
    if (update_) TF_RETURN_IF_ERROR(variables.OwnEverything());
    core::FactoredGradients<T> gradients = FactoredGradientsOf<T>(context);
    gradients.target_sums = target_sums;
    const core::FactoredOutcome outcome =
        core::FactoredUpdate<T>(variables.State(), BatchOf<T>(hidden, labels), gradients, rates,
                                update_, execution, hidden_gradient->flat<T>().data());
    if (!outcome.diverges) return absl::OkStatus();
    return DivergenceError(rates.learning_rate, rates.weight_decay, outcome.lambda_max);
  }

  // Sets *target_sums, unless they are found in the step itself.
  virtual absl::Status GetTargetSums(tf::OpKernelContext*, FactoredVariables<T>&,
                                     const core::DenseExecution<T>&, const T**) const {
    return absl::OkStatus();
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

// The second half of a step: what all shards have found comes in.
template <typename T>
class FactoredUpdateFromSumsOp : public FactoredUpdateOp<T> {
 public:
  using FactoredUpdateOp<T>::FactoredUpdateOp;

 protected:
  absl::Status GetTargetSums(tf::OpKernelContext* context, FactoredVariables<T>& variables,
                             const core::DenseExecution<T>& execution,
                             const T** target_sums) const override {
    TF_RETURN_IF_ERROR(variables.SetShard(context, kFirstInput + 10));
    const tf::Tensor& hidden = context->input(kFirstInput);
    const tf::Tensor& sums = context->input(kFirstInput + 9);
    TF_RETURN_IF_ERROR(
        CheckFactoredBatch(hidden, context->input(kFirstInput + 1), variables.State().width));
    TF_RETURN_IF_ERROR(CheckShape("target_sums", sums, hidden.shape()));
    TF_RETURN_IF_ERROR(CheckFinite<T>("target_sums", sums, execution.kernels));
    *target_sums = sums.flat<T>().data();
    return absl::OkStatus();
  }
};

// The first half: what this shard finds goes out.
template <typename T>
class FactoredTargetSumsOp : public FactoredOp<T> {
 public:
  using FactoredOp<T>::FactoredOp;

 protected:
  bool Updates() const override { return false; }

  absl::Status Run(tf::OpKernelContext* context, FactoredVariables<T>& variables,
                   const core::DenseExecution<T>& execution) const override {
    const tf::Tensor& labels = context->input(kFirstInput);
    const tf::Tensor& g_target = context->input(kFirstInput + 1);
    TF_RETURN_IF_ERROR(variables.SetShard(context, kFirstInput + 2));
    if (labels.dims() != 2 || labels.dim_size(1) > std::numeric_limits<int32_t>::max()) {
      return InvalidArgument("labels must be [B, K] with K below 2^31; got shape ",
                             labels.shape().DebugString());
    }
    TF_RETURN_IF_ERROR(CheckShape("g_target", g_target, labels.shape()));
    TF_RETURN_IF_ERROR(CheckFinite<T>("g_target", g_target, execution.kernels));
    TF_RETURN_IF_ERROR(variables.CheckLabelsAndSlots(labels, execution.rows));
    const core::FactoredState<T> state = variables.State();
    tf::Tensor* target_sums;
    TF_RETURN_IF_ERROR(
        context->allocate_output(0, {labels.dim_size(0), state.width}, &target_sums));
    const core::FactoredBatch<T> batch = {nullptr, labels.flat<int64_t>().data(),
                                          labels.dim_size(0), labels.dim_size(1)};
    core::FactoredTargetSums<T>(state, batch, g_target.flat<T>().data(), execution,
                                target_sums->flat<T>().data());
    return absl::OkStatus();
  }
};

TFX_REGISTER_FACTORED(FactoredUpdate);
TFX_REGISTER_FACTORED(FactoredUpdateFromSums);
TFX_REGISTER_FACTORED(FactoredTargetSums);

}  // namespace
}  // namespace tfx
