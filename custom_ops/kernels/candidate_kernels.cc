// SPDX-License-Identifier: Apache-2.0

#include <cstdint>

#include "core/candidate_logits.h"
#include "core/candidate_update.h"
#include "kernels/candidate_op.h"
#include "kernels/check_values.h"
#include "kernels/cpu_op.h"
#include "kernels/layer.h"
#include "kernels/locked_variables.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tfx {
namespace {

namespace tf = tensorflow;

// Returns an error for arguments that don't fit, and for numbers out of range. For little work, a
// second thread costs more than it saves.
absl::Status CheckInputs(const CandidateInputs& inputs, const core::LayerWeights& weights,
                         core::Execution* execution) {
  constexpr double kSmallLogitsFlop = 1e6;
  const int64_t num_classes = weights.num_classes;
  TF_RETURN_IF_ERROR(inputs.CheckShapes(weights.width));
  TF_RETURN_IF_ERROR(CheckIds("labels", inputs.labels, -1, num_classes, *execution));
  TF_RETURN_IF_ERROR(CheckIds("candidates", inputs.candidates, -1, num_classes, *execution));
  const double classes = inputs.labels.NumElements() + inputs.OfLogits().num_elements();
  if (2 * classes * weights.width < kSmallLogitsFlop) execution->num_workers = 1;
  return CheckFinite("hidden", inputs.hidden, execution->dense);
}

class CandidateLogitsOp : public CpuOp {
 public:
  explicit CandidateLogitsOp(tf::OpKernelConstruction* context) : CpuOp(context) {
    OP_REQUIRES_OK(context, layer_.ReadAttributes(context));
  }

 protected:
  absl::Status Run(tf::OpKernelContext* context, core::Execution execution) const override {
    LockedVariables variables;
    TF_RETURN_IF_ERROR(variables.Lock(context, layer_.Names(), LockedVariables::Mode::kShared));
    TF_RETURN_IF_ERROR(layer_.CheckShapes(variables));
    const CandidateInputs inputs(context, variables.size());
    const core::LayerWeights weights = layer_.Weights(variables);
    TF_RETURN_IF_ERROR(CheckInputs(inputs, weights, &execution));
    core::CandidateLogitsOutputs outputs;
    TF_RETURN_IF_ERROR(inputs.AllocateLogits(context, &outputs));
    core::CandidateLogits(weights, inputs.Batch(), execution, outputs);
    return absl::OkStatus();
  }

 private:
  Layer layer_;
};

class CandidateUpdateOp : public CpuOp {
 public:
  explicit CandidateUpdateOp(tf::OpKernelConstruction* context) : CpuOp(context) {
    OP_REQUIRES_OK(context, update_.ReadAttributes(context));
    OP_REQUIRES_OK(context, context->GetAttr("gradient", &gradient_));
  }

 protected:
  absl::Status Run(tf::OpKernelContext* context, core::Execution execution) const override {
    LayerUpdate update = update_;
    LockedVariables variables;
    TF_RETURN_IF_ERROR(update.Lock(context, &variables));
    const CandidateInputs inputs(context, variables.size());
    TF_RETURN_IF_ERROR(CheckInputs(inputs, update.layer().Weights(variables), &execution));
    TF_RETURN_IF_ERROR(update.Set(context, variables, inputs.learning_rate));
    core::CandidateGradients gradients;
    TF_RETURN_IF_ERROR(inputs.GetGradients(context, &gradients));
    TF_RETURN_IF_ERROR(
        CheckGradient("true_gradient", context->input(inputs.gradients), inputs.labels, execution));
    TF_RETURN_IF_ERROR(CheckGradient("candidate_gradient", context->input(inputs.gradients + 1),
                                     inputs.candidates, execution));
    float* hidden_gradient;
    TF_RETURN_IF_ERROR(inputs.AllocateGradient(context, gradient_, &hidden_gradient));
    TF_RETURN_IF_ERROR(update.Own(&variables));
    const auto updater = update.Updater(execution.rows);
    core::CandidateUpdate(update.layer().Weights(variables), update.Rows(variables), inputs.Batch(),
                          gradients, updater.has_value() ? &*updater : nullptr, execution,
                          hidden_gradient);
    return absl::OkStatus();
  }

 private:
  LayerUpdate update_;  // the attributes
  bool gradient_;
};

REGISTER_KERNEL_BUILDER(Name("TfxCandidateLogits").Device(tf::DEVICE_CPU), CandidateLogitsOp);
REGISTER_KERNEL_BUILDER(Name("TfxCandidateUpdate").Device(tf::DEVICE_CPU), CandidateUpdateOp);

}  // namespace
}  // namespace tfx
