// SPDX-License-Identifier: Apache-2.0

#include <cmath>
#include <cstdint>

#include "core/factored_coordinates.h"
#include "core/factored_statistics.h"
#include "core/factored_update.h"
#include "kernels/cpu_op.h"
#include "kernels/factored_variables.h"
#include "kernels/invalid_argument.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tfx {
namespace {

namespace tf = tensorflow;

constexpr int kFirstInput = kNumFactoredVariables;  // after the variables

// Below, a second thread costs more than it saves.
constexpr double kSmallFlop = 4e6;

// An op on a factored layer, whose variables it locks.
template <typename T>
class FactoredOp : public CpuOp {
 public:
  using CpuOp::CpuOp;

 protected:
  virtual absl::Status Run(tf::OpKernelContext* context, FactoredVariables<T>& variables,
                           const core::DenseExecution<T>& execution) = 0;

  absl::Status Run(tf::OpKernelContext* context, core::Execution execution) final {
    FactoredVariables<T> variables;
    TF_RETURN_IF_ERROR(variables.Lock(context));
    if (IsSmall(context, variables.State().width)) execution.num_workers = 1;
    return Run(context, variables, core::DenseExecution<T>(execution));
  }

 private:
  static bool IsSmall(tf::OpKernelContext* context, int64_t width) {
    double flop = 2.0 * width * width;
    if (context->num_inputs() > kFirstInput && context->input(kFirstInput).dims() > 0) {
      flop *= context->input(kFirstInput).dim_size(0);
    }
    return flop < kSmallFlop;
  }
};

template <typename T>
core::FactoredBatch<T> BatchOf(const tf::Tensor& hidden, const tf::Tensor& labels) {
  return {hidden.flat<T>().data(), labels.flat<int64_t>().data(), hidden.dim_size(0),
          labels.dim_size(1)};
}

template <typename T>
class FactoredStatisticsOp : public FactoredOp<T> {
 public:
  explicit FactoredStatisticsOp(tf::OpKernelConstruction* context) : FactoredOp<T>(context) {
    OP_REQUIRES_OK(context, context->GetAttr("update_rows", &update_rows_));
  }

 protected:
  absl::Status Run(tf::OpKernelContext* context, FactoredVariables<T>& variables,
                   const core::DenseExecution<T>& execution) override {
    const tf::Tensor& hidden = context->input(kFirstInput);
    const tf::Tensor& labels = context->input(kFirstInput + 1);
    TF_RETURN_IF_ERROR(variables.CheckBatch(hidden, labels, execution));
    const tf::TensorShape by_example({hidden.dim_size(0)});
    tf::Tensor *targets, *squares, *sum, *gram_hidden, *u_hidden;
    TF_RETURN_IF_ERROR(context->allocate_output(0, labels.shape(), &targets));
    TF_RETURN_IF_ERROR(context->allocate_output(1, by_example, &squares));
    TF_RETURN_IF_ERROR(context->allocate_output(2, by_example, &sum));
    TF_RETURN_IF_ERROR(context->allocate_output(3, hidden.shape(), &gram_hidden));
    TF_RETURN_IF_ERROR(context->allocate_output(4, hidden.shape(), &u_hidden));
    if (update_rows_) TF_RETURN_IF_ERROR(variables.OwnRows());
    core::FactoredStatistics<T>(
        variables.State(), BatchOf<T>(hidden, labels), update_rows_, execution,
        {targets->flat<T>().data(), squares->flat<T>().data(), sum->flat<T>().data(),
         gram_hidden->flat<T>().data(), u_hidden->flat<T>().data()});
    return absl::OkStatus();
  }

 private:
  bool update_rows_;
};

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
  absl::Status Run(tf::OpKernelContext* context, FactoredVariables<T>& variables,
                   const core::DenseExecution<T>& execution) override {
    const tf::Tensor& hidden = context->input(kFirstInput);
    const tf::Tensor& labels = context->input(kFirstInput + 1);
    TF_RETURN_IF_ERROR(variables.CheckBatch(hidden, labels, execution));
    TF_RETURN_IF_ERROR(CheckGradients(context, execution.kernels));
    core::FactoredRates<T> rates;
    TF_RETURN_IF_ERROR(GetRates(context, &rates));
    tf::Tensor* hidden_gradient;
    TF_RETURN_IF_ERROR(context->allocate_output(0, hidden.shape(), &hidden_gradient));
    if (update_) TF_RETURN_IF_ERROR(variables.OwnEverything());
    const core::FactoredGradients<T> gradients = {Input(context, 2), Input(context, 3),
                                                  Input(context, 4), Input(context, 5),
                                                  Input(context, 6)};
    const core::FactoredOutcome outcome =
        core::FactoredUpdate<T>(variables.State(), BatchOf<T>(hidden, labels), gradients, rates,
                                update_, execution, hidden_gradient->flat<T>().data());
    if (!outcome.diverges) return absl::OkStatus();
    return InvalidArgument(
        "learning_rate must keep 2 learning_rate lambda_max(H^T diag(g_q) H) at ",
        "most 2, or the step diverges in the naive layer too; got learning_rate ",
        rates.learning_rate, " and lambda_max ", outcome.lambda_max);
  }

 private:
  static const T* Input(tf::OpKernelContext* context, int index) {
    return context->input(kFirstInput + index).flat<T>().data();
  }

  // Inputs 2 to 6.
  static absl::Status CheckGradients(tf::OpKernelContext* context,
                                     const core::DenseKernels<T>& kernels) {
    constexpr const char* kNames[] = {"gram_hidden", "u_hidden", "g_target", "g_squares", "g_sum"};
    const tf::TensorShape& hidden = context->input(kFirstInput).shape();
    const tf::TensorShape& labels = context->input(kFirstInput + 1).shape();
    const tf::TensorShape by_example({hidden.dim_size(0)});
    const tf::TensorShape* shapes[] = {&hidden, &hidden, &labels, &by_example, &by_example};
    for (int i = 0; i < 5; ++i) {
      const tf::Tensor& tensor = context->input(kFirstInput + 2 + i);
      TF_RETURN_IF_ERROR(CheckShape(kNames[i], tensor, *shapes[i]));
      if (!kernels.all_finite(tensor.flat<T>().data(), tensor.NumElements())) {
        return InvalidArgument(kNames[i], " must be finite; got an infinite or NaN number");
      }
    }
    return absl::OkStatus();
  }

  absl::Status GetRates(tf::OpKernelContext* context, core::FactoredRates<T>* rates) const {
    const tf::Tensor& learning_rate = context->input(kFirstInput + 7);
    const tf::Tensor& weight_decay = context->input(kFirstInput + 8);
    if (learning_rate.dims() != 0 || weight_decay.dims() != 0) {
      return InvalidArgument("learning_rate and weight_decay must be scalars; got shapes ",
                             learning_rate.shape().DebugString(), " and ",
                             weight_decay.shape().DebugString());
    }
    const T eta = learning_rate.scalar<T>()(), decay = weight_decay.scalar<T>()();
    if (!(eta >= 0) || !std::isfinite(eta)) {
      return InvalidArgument("learning_rate must be at least 0 and finite; got ", eta);
    }
    if (!(decay >= 0) || !(eta * decay < 1)) {
      return InvalidArgument(
          "weight_decay must be at least 0 and below 1 / learning_rate; got weight_decay ", decay,
          " with learning_rate ", eta);
    }
    *rates = {eta, decay, static_cast<T>(max_condition_)};
    return absl::OkStatus();
  }

  bool update_;
  float max_condition_;
};

template <typename T>
class FactoredSettleOp : public FactoredOp<T> {
 public:
  using FactoredOp<T>::FactoredOp;

 protected:
  absl::Status Run(tf::OpKernelContext*, FactoredVariables<T>& variables,
                   const core::DenseExecution<T>& execution) override {
    TF_RETURN_IF_ERROR(variables.CheckAllRows());
    TF_RETURN_IF_ERROR(variables.OwnRows());
    core::Settle<T>(variables.State(), execution);
    return absl::OkStatus();
  }
};

template <typename T>
class FactoredReanchorOp : public FactoredOp<T> {
 public:
  using FactoredOp<T>::FactoredOp;

 protected:
  absl::Status Run(tf::OpKernelContext*, FactoredVariables<T>& variables,
                   const core::DenseExecution<T>& execution) override {
    TF_RETURN_IF_ERROR(variables.CheckAllRows());
    TF_RETURN_IF_ERROR(variables.OwnEverything());
    core::Reanchor<T>(variables.State(), execution);
    return absl::OkStatus();
  }
};

#define TFX_REGISTER_OP(OP, T)                                                               \
  REGISTER_KERNEL_BUILDER(Name("Tfx" #OP).Device(tf::DEVICE_CPU).TypeConstraint<T>("dtype"), \
                          OP##Op<T>)
#define TFX_REGISTER(T)                   \
  TFX_REGISTER_OP(FactoredStatistics, T); \
  TFX_REGISTER_OP(FactoredUpdate, T);     \
  TFX_REGISTER_OP(FactoredSettle, T);     \
  TFX_REGISTER_OP(FactoredReanchor, T)

TFX_REGISTER(float);
TFX_REGISTER(double);
#undef TFX_REGISTER
#undef TFX_REGISTER_OP

}  // namespace
}  // namespace tfx
