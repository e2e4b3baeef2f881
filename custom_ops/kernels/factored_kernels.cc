// SPDX-License-Identifier: Apache-2.0

#include <cmath>
#include <cstdint>
#include <mutex>
#include <string>

#include "core/dense_kernels.h"
#include "core/factored_coordinates.h"
#include "core/factored_statistics.h"
#include "core/factored_update.h"
#include "core/phases.h"
#include "kernels/factored_variables.h"
#include "kernels/invalid_argument.h"
#include "kernels/parallel_for.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tfx {
namespace {

namespace tf = tensorflow;

constexpr int kFirstInput = kNumFactoredVariables;  // after the variables

// Below, a second thread costs more than it saves.
constexpr double kSmallFlop = 4e6;

// An op on a factored layer: locks its variables, then calls Compute with what core runs on.
template <typename T>
class FactoredOp : public tf::OpKernel {
 public:
  using tf::OpKernel::OpKernel;

  void Compute(tf::OpKernelContext* context) final {
    const std::lock_guard<std::mutex> lock(mutex_);
    FactoredVariables<T> variables;
    OP_REQUIRES_OK(context, variables.Lock(context));
    core::InstructionSet set;
    std::string error;
    OP_REQUIRES(context, core::ChooseInstructionSet(&set, &error), InvalidArgument(error));
    const core::ParallelFor pool = PoolOf(context);
    const core::Workspace::Scope scope(workspace_);
    Compute(context, variables,
            {core::DenseKernelsOf<T>(set), NumWorkersFor(context, variables.State()), pool,
             workspace_});
  }

 protected:
  virtual void Compute(tf::OpKernelContext* context, FactoredVariables<T>& variables,
                       const core::FactoredResources<T>& resources) = 0;

 private:
  static int NumWorkersFor(tf::OpKernelContext* context, const core::FactoredState<T>& state) {
    double flop = 2.0 * state.width * state.width;
    if (context->num_inputs() > kFirstInput && context->input(kFirstInput).dims() > 0) {
      flop *= context->input(kFirstInput).dim_size(0);
    }
    return flop < kSmallFlop ? 1 : NumWorkers(context);
  }

  std::mutex mutex_;
  core::Workspace workspace_;  // guarded by mutex_
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
  void Compute(tf::OpKernelContext* context, FactoredVariables<T>& variables,
               const core::FactoredResources<T>& resources) override {
    const tf::Tensor& hidden = context->input(kFirstInput);
    const tf::Tensor& labels = context->input(kFirstInput + 1);
    OP_REQUIRES_OK(context, variables.CheckBatch(hidden, labels, resources.kernels));
    const tf::TensorShape by_example({hidden.dim_size(0)});
    tf::Tensor *targets, *squares, *sum, *gram_hidden, *u_hidden;
    OP_REQUIRES_OK(context, context->allocate_output(0, labels.shape(), &targets));
    OP_REQUIRES_OK(context, context->allocate_output(1, by_example, &squares));
    OP_REQUIRES_OK(context, context->allocate_output(2, by_example, &sum));
    OP_REQUIRES_OK(context, context->allocate_output(3, hidden.shape(), &gram_hidden));
    OP_REQUIRES_OK(context, context->allocate_output(4, hidden.shape(), &u_hidden));
    if (update_rows_) OP_REQUIRES_OK(context, variables.OwnRows());
    core::FactoredStatistics<T>(
        variables.State(), BatchOf<T>(hidden, labels), update_rows_, resources,
        {targets->flat<T>().data(), squares->flat<T>().data(), sum->flat<T>().data(),
         gram_hidden->flat<T>().data(), u_hidden->flat<T>().data()});
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
  void Compute(tf::OpKernelContext* context, FactoredVariables<T>& variables,
               const core::FactoredResources<T>& resources) override {
    const tf::Tensor& hidden = context->input(kFirstInput);
    const tf::Tensor& labels = context->input(kFirstInput + 1);
    OP_REQUIRES_OK(context, variables.CheckBatch(hidden, labels, resources.kernels));
    OP_REQUIRES_OK(context, CheckGradients(context, resources.kernels));
    core::FactoredRates<T> rates;
    OP_REQUIRES_OK(context, GetRates(context, &rates));
    tf::Tensor* hidden_gradient;
    OP_REQUIRES_OK(context, context->allocate_output(0, hidden.shape(), &hidden_gradient));
    if (update_) OP_REQUIRES_OK(context, variables.OwnEverything());
    const core::FactoredGradients<T> gradients = {Input(context, 2), Input(context, 3),
                                                  Input(context, 4), Input(context, 5),
                                                  Input(context, 6)};
    const core::FactoredOutcome outcome =
        core::FactoredUpdate<T>(variables.State(), BatchOf<T>(hidden, labels), gradients, rates,
                                update_, resources, hidden_gradient->flat<T>().data());
    OP_REQUIRES(context, !outcome.diverges,
                InvalidArgument("learning_rate must keep 2 learning_rate lambda_max(H^T diag(g_q) "
                                "H) at most 2, or the step diverges in the naive layer too; got "
                                "learning_rate ",
                                rates.learning_rate, " and lambda_max ", outcome.lambda_max));
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
      if (tensor.shape() != *shapes[i]) {
        return InvalidArgument(kNames[i], " must have shape ", shapes[i]->DebugString(), "; got ",
                               tensor.shape().DebugString());
      }
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
  void Compute(tf::OpKernelContext* context, FactoredVariables<T>& variables,
               const core::FactoredResources<T>& resources) override {
    OP_REQUIRES_OK(context, variables.CheckAllRows());
    OP_REQUIRES_OK(context, variables.OwnRows());
    core::Settle<T>(variables.State(), resources);
  }
};

template <typename T>
class FactoredReanchorOp : public FactoredOp<T> {
 public:
  using FactoredOp<T>::FactoredOp;

 protected:
  void Compute(tf::OpKernelContext* context, FactoredVariables<T>& variables,
               const core::FactoredResources<T>& resources) override {
    OP_REQUIRES_OK(context, variables.CheckAllRows());
    OP_REQUIRES_OK(context, variables.OwnEverything());
    core::Reanchor<T>(variables.State(), resources);
  }
};

class PhaseSecondsOp : public tf::OpKernel {
 public:
  using tf::OpKernel::OpKernel;

  void Compute(tf::OpKernelContext* context) override {
    const tf::Tensor& record = context->input(0);
    OP_REQUIRES(context, record.dims() == 0,
                InvalidArgument("record must be a scalar; got rank ", record.dims()));
    const core::PhaseSeconds phases = core::TakePhaseSeconds(record.scalar<bool>()());
    tf::Tensor *names, *seconds;
    const tf::TensorShape shape({static_cast<int64_t>(phases.size())});
    OP_REQUIRES_OK(context, context->allocate_output(0, shape, &names));
    OP_REQUIRES_OK(context, context->allocate_output(1, shape, &seconds));
    int64_t i = 0;
    for (const auto& [name, time] : phases) {
      names->vec<tf::tstring>()(i) = name;
      seconds->vec<double>()(i++) = time;
    }
  }
};

REGISTER_KERNEL_BUILDER(Name("TfxPhaseSeconds").Device(tf::DEVICE_CPU), PhaseSecondsOp);

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
