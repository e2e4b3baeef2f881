// SPDX-License-Identifier: Apache-2.0

#include <cstdint>

#include "core/candidate_logits.h"
#include "core/candidate_update.h"
#include "kernels/candidate_checks.h"
#include "kernels/candidate_op.h"
#include "kernels/check_values.h"
#include "kernels/cpu_op.h"
#include "kernels/layer_update.h"
#include "kernels/locked_variables.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tfx {
namespace {

namespace tf = tensorflow;

// Below, a second thread costs more than it saves.
constexpr double kSmallLogitsFlop = 1e6;

bool AreSmall(const CandidateInputs& inputs) {
  const double classes = inputs.labels.NumElements() + inputs.OfLogits().num_elements();
  return 2 * classes * inputs.hidden.dim_size(1) < kSmallLogitsFlop;
}

absl::Status CheckValues(const CandidateInputs& inputs, int64_t num_classes,
                         const core::Execution& execution) {
  TF_RETURN_IF_ERROR(CheckIds("labels", inputs.labels, -1, num_classes, execution));
  TF_RETURN_IF_ERROR(CheckIds("candidates", inputs.candidates, -1, num_classes, execution));
  return CheckFinite("hidden", inputs.hidden, execution.dense);
}

// What both ops share: locks, and the checks of their common arguments.
class CandidateOp : public CpuOp {
 public:
  explicit CandidateOp(tf::OpKernelConstruction* context) : CpuOp(context) {
    OP_REQUIRES_OK(context, layer_.ReadAttributes(context));
  }

 protected:
  virtual absl::Status Lock(tf::OpKernelContext* context, LockedVariables* variables) const = 0;
  virtual absl::Status Run(tf::OpKernelContext* context, const CandidateInputs& inputs,
                           LockedVariables* variables, const core::Execution& execution) const = 0;

  absl::Status Run(tf::OpKernelContext* context, core::Execution execution) const final {
    LockedVariables variables;
    TF_RETURN_IF_ERROR(Lock(context, &variables));
    const CandidateInputs inputs(context, variables.size());
    TF_RETURN_IF_ERROR(layer_.CheckShapes(variables, inputs));
    TF_RETURN_IF_ERROR(CheckValues(inputs, variables.tensor(0)->dim_size(0), execution));
    if (AreSmall(inputs)) execution.num_workers = 1;
    return Run(context, inputs, &variables, execution);
  }

  CandidateLayer layer_;
};

class CandidateLogitsOp : public CandidateOp {
 public:
  using CandidateOp::CandidateOp;

 protected:
  absl::Status Lock(tf::OpKernelContext* context, LockedVariables* variables) const override {
    return variables->Lock(context, layer_.Names(), LockedVariables::Mode::kShared);
  }

  absl::Status Run(tf::OpKernelContext* context, const CandidateInputs& inputs,
                   LockedVariables* variables, const core::Execution& execution) const override {
    core::CandidateLogitsOutputs outputs;
    TF_RETURN_IF_ERROR(AllocateCandidateLogits(context, inputs, &outputs));
    core::CandidateLogits(layer_.Weights(*variables), inputs.Batch(), execution, outputs);
    return absl::OkStatus();
  }
};

class CandidateUpdateOp : public CandidateOp {
 public:
  explicit CandidateUpdateOp(tf::OpKernelConstruction* context) : CandidateOp(context) {
    OP_REQUIRES_OK(context, update_.ReadAttributes(context));
  }

 protected:
  absl::Status Lock(tf::OpKernelContext* context, LockedVariables* variables) const override {
    return variables->Lock(context, update_.Names(), update_.LockMode());
  }

  absl::Status Run(tf::OpKernelContext* context, const CandidateInputs& inputs,
                   LockedVariables* variables, const core::Execution& execution) const override {
    const CandidateGradientInputs gradients(context, variables->size() + 3);
    LayerUpdate update = update_;
    TF_RETURN_IF_ERROR(update.Set(context, *variables, gradients.learning_rate));
    TF_RETURN_IF_ERROR(Check(inputs, gradients, execution));
    tf::Tensor* hidden_gradient;
    TF_RETURN_IF_ERROR(context->allocate_output(0, inputs.hidden.shape(), &hidden_gradient));
    TF_RETURN_IF_ERROR(update.Own(variables));
    const core::CandidateBatch batch = inputs.Batch();
    const auto updater = update.Updater(execution.rows);
    const auto run = batch.own ? core::OwnCandidateUpdate : core::SharedCandidateUpdate;
    run(layer_.Weights(*variables), update.Rows(*variables), batch, gradients.Gradients(),
        updater.has_value() ? &*updater : nullptr, execution,
        hidden_gradient->flat<float>().data());
    return absl::OkStatus();
  }

 private:
  static absl::Status Check(const CandidateInputs& inputs, const CandidateGradientInputs& gradients,
                            const core::Execution& execution) {
    TF_RETURN_IF_ERROR(CheckGradientShapes(gradients.labels, gradients.candidates,
                                           inputs.labels.shape(), inputs.OfLogits()));
    TF_RETURN_IF_ERROR(CheckGradient("true_gradient", gradients.labels, inputs.labels, execution));
    return CheckGradient("candidate_gradient", gradients.candidates, inputs.candidates, execution);
  }

  LayerUpdate update_;  // the attributes
};

REGISTER_KERNEL_BUILDER(Name("TfxCandidateLogits").Device(tf::DEVICE_CPU), CandidateLogitsOp);
REGISTER_KERNEL_BUILDER(Name("TfxCandidateUpdate").Device(tf::DEVICE_CPU), CandidateUpdateOp);

}  // namespace
}  // namespace tfx
