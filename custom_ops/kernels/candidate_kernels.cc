// SPDX-License-Identifier: Apache-2.0

#include <cstdint>
#include <string>
#include <vector>

#include "core/candidate_logits.h"
#include "core/candidate_update.h"
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

// Below, a second thread costs more than it saves.
constexpr double kSmallFlop = 1e6;

// Hidden, labels and candidates are three inputs in a row.
struct Inputs {
  const tf::Tensor& hidden;
  const tf::Tensor& labels;
  const tf::Tensor& candidates;

  Inputs(tf::OpKernelContext* context, int first)
      : hidden(context->input(first)),
        labels(context->input(first + 1)),
        candidates(context->input(first + 2)) {}

  tf::TensorShape OfLogits() const {
    return {hidden.dim_size(0), candidates.dim_size(candidates.dims() - 1)};
  }

  core::CandidateBatch Batch() const {
    return {hidden.flat<float>().data(),
            labels.flat<int64_t>().data(),
            candidates.flat<int64_t>().data(),
            candidates.dims() == 2,
            hidden.dim_size(0),
            labels.dim_size(1),
            OfLogits().dim_size(1)};
  }

  bool AreSmall() const {
    const double classes = labels.NumElements() + OfLogits().num_elements();
    return 2 * classes * hidden.dim_size(1) < kSmallFlop;
  }
};

absl::Status CheckValues(const Inputs& inputs, int64_t num_classes,
                         const core::Execution& execution) {
  TF_RETURN_IF_ERROR(CheckIds("labels", inputs.labels, -1, num_classes, execution));
  TF_RETURN_IF_ERROR(CheckIds("candidates", inputs.candidates, -1, num_classes, execution));
  return CheckFinite("hidden", inputs.hidden, execution.dense);
}

// What both ops share: locks, and the checks of their common arguments.
class CandidateOp : public CpuOp {
 public:
  explicit CandidateOp(tf::OpKernelConstruction* context) : CpuOp(context) {
    OP_REQUIRES_OK(context, context->GetAttr("num_biases", &num_biases_));
    OP_REQUIRES_OK(context, context->GetAttr("dtype", &dtype_));
    OP_REQUIRES(context, num_biases_ <= 1,
                InvalidArgument("bias must be at most one variable; got ", num_biases_));
  }

 protected:
  virtual absl::Status Lock(tf::OpKernelContext* context, LockedVariables* variables) = 0;
  virtual absl::Status Run(tf::OpKernelContext* context, const Inputs& inputs,
                           LockedVariables* variables, const core::Execution& execution) = 0;

  absl::Status Run(tf::OpKernelContext* context, core::Execution execution) final {
    LockedVariables variables;
    TF_RETURN_IF_ERROR(Lock(context, &variables));
    const tf::Tensor& kernel = *variables.tensor(0);
    TF_RETURN_IF_ERROR(
        CheckLayerShapes(kernel, num_biases_ == 0 ? nullptr : variables.tensor(1), dtype_));
    const Inputs inputs(context, variables.size());
    TF_RETURN_IF_ERROR(
        CheckBatchShapes(inputs.hidden, inputs.labels, inputs.candidates, kernel.dim_size(1)));
    TF_RETURN_IF_ERROR(CheckValues(inputs, kernel.dim_size(0), execution));
    if (inputs.AreSmall()) execution.num_workers = 1;
    return Run(context, inputs, &variables, execution);
  }

  std::vector<std::string> WeightNames() const {
    return num_biases_ == 0 ? std::vector<std::string>{"kernel"}
                            : std::vector<std::string>{"kernel", "bias"};
  }

  int num_biases_;

 private:
  tf::DataType dtype_;
};

class CandidateLogitsOp : public CandidateOp {
 public:
  using CandidateOp::CandidateOp;

 protected:
  absl::Status Lock(tf::OpKernelContext* context, LockedVariables* variables) override {
    return variables->Lock(context, WeightNames(), LockedVariables::Mode::kShared);
  }

  absl::Status Run(tf::OpKernelContext* context, const Inputs& inputs, LockedVariables* variables,
                   const core::Execution& execution) override {
    tf::Tensor *true_logits, *logits, *hits;
    TF_RETURN_IF_ERROR(context->allocate_output(0, inputs.labels.shape(), &true_logits));
    TF_RETURN_IF_ERROR(context->allocate_output(1, inputs.OfLogits(), &logits));
    TF_RETURN_IF_ERROR(context->allocate_output(2, inputs.OfLogits(), &hits));
    core::CandidateLogits(WeightsOf(*variables, num_biases_), inputs.Batch(), execution,
                          {true_logits->flat<float>().data(), logits->flat<float>().data(),
                           hits->flat<bool>().data()});
    return absl::OkStatus();
  }
};

class CandidateUpdateOp : public CandidateOp {
 public:
  explicit CandidateUpdateOp(tf::OpKernelConstruction* context) : CandidateOp(context) {
    OP_REQUIRES_OK(context, layer_.ReadAttributes(context));
  }

 protected:
  absl::Status Lock(tf::OpKernelContext* context, LockedVariables* variables) override {
    return variables->Lock(context, layer_.Names(), LockedVariables::Mode::kExclusive);
  }

  absl::Status Run(tf::OpKernelContext* context, const Inputs& inputs, LockedVariables* variables,
                   const core::Execution& execution) override {
    TF_RETURN_IF_ERROR(Check(context, inputs, execution, *variables));
    tf::Tensor* hidden_gradient;
    TF_RETURN_IF_ERROR(context->allocate_output(0, inputs.hidden.shape(), &hidden_gradient));
    TF_RETURN_IF_ERROR(layer_.Own(variables));
    const core::CandidateBatch batch = inputs.Batch();
    const auto updater = layer_.Updater(execution.rows);
    const auto run = batch.own ? core::OwnCandidateUpdate : core::SharedCandidateUpdate;
    run(WeightsOf(*variables, num_biases_), layer_.Rows(*variables), batch,
        {Gradient(context, *variables, 0).flat<float>().data(),
         Gradient(context, *variables, 1).flat<float>().data()},
        updater.has_value() ? &*updater : nullptr, execution,
        hidden_gradient->flat<float>().data());
    return absl::OkStatus();
  }

 private:
  // Inputs after the candidates: of the labels (0) or the candidates (1).
  static const tf::Tensor& Gradient(tf::OpKernelContext* context, const LockedVariables& variables,
                                    int index) {
    return context->input(variables.size() + 3 + index);
  }

  absl::Status Check(tf::OpKernelContext* context, const Inputs& inputs,
                     const core::Execution& execution, const LockedVariables& variables) {
    TF_RETURN_IF_ERROR(layer_.Set(context, variables, variables.size() + 5));
    const tf::Tensor& labels = Gradient(context, variables, 0);
    const tf::Tensor& candidates = Gradient(context, variables, 1);
    TF_RETURN_IF_ERROR(
        CheckGradientShapes(labels, candidates, inputs.labels.shape(), inputs.OfLogits()));
    TF_RETURN_IF_ERROR(CheckGradient("true_gradient", labels, inputs.labels, execution));
    return CheckGradient("candidate_gradient", candidates, inputs.candidates, execution);
  }

  LayerUpdate layer_;  // used under the lock of Compute
};

REGISTER_KERNEL_BUILDER(Name("TfxCandidateLogits").Device(tf::DEVICE_CPU), CandidateLogitsOp);
REGISTER_KERNEL_BUILDER(Name("TfxCandidateUpdate").Device(tf::DEVICE_CPU), CandidateUpdateOp);

}  // namespace
}  // namespace tfx
