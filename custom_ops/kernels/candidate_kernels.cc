// SPDX-License-Identifier: Apache-2.0

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <mutex>
#include <string>
#include <vector>

#include "core/candidate_logits.h"
#include "core/candidate_update.h"
#include "kernels/check_ids.h"
#include "kernels/invalid_argument.h"
#include "kernels/locked_variables.h"
#include "kernels/parallel_for.h"
#include "kernels/row_rule.h"
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

  int NumWorkers(tf::OpKernelContext* context) const {
    const double classes = labels.NumElements() + OfLogits().num_elements();
    return 2 * classes * hidden.dim_size(1) < kSmallFlop ? 1 : tfx::NumWorkers(context);
  }
};

// Whether N (K + S) is below 2^31, and so are N and K + S.
bool AreFew(const tf::Tensor& labels, const tf::Tensor& candidates) {
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  const int64_t batch = labels.dim_size(0), num_labels = labels.dim_size(1);
  const int64_t num_candidates = candidates.dim_size(candidates.dims() - 1);
  return batch <= kMost && num_labels <= kMost && num_candidates <= kMost - num_labels &&
         batch <= kMost / std::max<int64_t>(num_labels + num_candidates, 1);
}

absl::Status CheckShapes(const Inputs& inputs, const tf::Tensor& kernel) {
  const int64_t width = kernel.dim_size(1);
  const tf::Tensor &hidden = inputs.hidden, &labels = inputs.labels,
                   &candidates = inputs.candidates;
  if (hidden.dims() != 2 || hidden.dim_size(1) != width) {
    return InvalidArgument("hidden must be [N, D] with the D of kernel, ", width, "; got shape ",
                           hidden.shape().DebugString());
  }
  const int64_t batch = hidden.dim_size(0);
  if (labels.dims() != 2 || labels.dim_size(0) != batch) {
    return InvalidArgument("labels must be [N, K] with the N of hidden, ", batch, "; got shape ",
                           labels.shape().DebugString());
  }
  if (candidates.dims() != 1 && (candidates.dims() != 2 || candidates.dim_size(0) != batch)) {
    return InvalidArgument("candidates must be [S], or [N, S] with the N of hidden, ", batch,
                           "; got shape ", candidates.shape().DebugString());
  }
  if (AreFew(labels, candidates)) return absl::OkStatus();
  return InvalidArgument("labels and candidates of all examples must be fewer than 2^31; got ",
                         "shapes ", labels.shape().DebugString(), " and ",
                         candidates.shape().DebugString());
}

absl::Status CheckWeights(const LockedVariables& variables, tf::DataType dtype, int num_biases) {
  const tf::Tensor& kernel = *variables.tensor(0);
  if (kernel.dtype() != dtype || kernel.dims() != 2 || kernel.dim_size(0) < 1 ||
      kernel.dim_size(0) > std::numeric_limits<int32_t>::max()) {
    return InvalidArgument("kernel must be ", tf::DataTypeString(dtype),
                           " [C, D] with C at least 1 and below 2^31; got ",
                           tf::DataTypeString(kernel.dtype()), " of shape ",
                           kernel.shape().DebugString());
  }
  if (num_biases == 0) return absl::OkStatus();
  const tf::Tensor& bias = *variables.tensor(1);
  if (bias.dtype() != dtype || bias.dims() != 1 || bias.dim_size(0) != kernel.dim_size(0)) {
    return InvalidArgument("bias must be ", tf::DataTypeString(dtype),
                           " [C] with the C of kernel, ", kernel.dim_size(0), "; got ",
                           tf::DataTypeString(bias.dtype()), " of shape ",
                           bias.shape().DebugString());
  }
  return absl::OkStatus();
}

core::LayerWeights WeightsOf(const LockedVariables& variables, int num_biases) {
  const tf::Tensor& kernel = *variables.tensor(0);
  return {kernel.data(), num_biases == 0 ? nullptr : variables.tensor(1)->data(),
          kernel.dtype() == tf::DT_BFLOAT16, kernel.dim_size(0), kernel.dim_size(1)};
}

absl::Status CheckValues(const Inputs& inputs, int64_t num_classes, core::InstructionSet set) {
  const core::RowKernels& rows = core::RowKernelsOf(set);
  TF_RETURN_IF_ERROR(CheckIds("labels", inputs.labels, -1, num_classes, rows));
  TF_RETURN_IF_ERROR(CheckIds("candidates", inputs.candidates, -1, num_classes, rows));
  if (!core::DenseKernelsOf<float>(set).all_finite(inputs.hidden.flat<float>().data(),
                                                   inputs.hidden.NumElements())) {
    return InvalidArgument("hidden must be finite; got an infinite or NaN number");
  }
  return absl::OkStatus();
}

// Refuses a number that is not finite and not at padding. The ids are those of a row, or of all.
absl::Status CheckGradient(const char* name, const tf::Tensor& gradient, const tf::Tensor& ids,
                           core::InstructionSet set) {
  const float* g = gradient.flat<float>().data();
  const int64_t n = gradient.NumElements();
  if (core::DenseKernelsOf<float>(set).all_finite(g, n)) return absl::OkStatus();
  const auto flat_ids = ids.flat<int64_t>();
  for (int64_t at = 0; at < n; ++at) {
    if (std::isfinite(g[at]) || flat_ids(at % ids.NumElements()) < 0) continue;
    const int64_t columns = gradient.dim_size(1);
    return InvalidArgument(name, " must be finite; got ", g[at], " at position [", at / columns,
                           ", ", at % columns, "]");
  }
  return absl::OkStatus();
}

// What both ops share: memory, the choice of an instruction set, and locks.
class CandidateOp : public tf::OpKernel {
 public:
  explicit CandidateOp(tf::OpKernelConstruction* context) : tf::OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("num_biases", &num_biases_));
    OP_REQUIRES_OK(context, context->GetAttr("dtype", &dtype_));
    OP_REQUIRES(context, num_biases_ <= 1,
                InvalidArgument("bias must be at most one variable; got ", num_biases_));
  }

  void Compute(tf::OpKernelContext* context) final {
    const std::lock_guard<std::mutex> lock(mutex_);
    core::InstructionSet set;
    std::string error;
    OP_REQUIRES(context, core::ChooseInstructionSet(&set, &error), InvalidArgument(error));
    LockedVariables variables;
    OP_REQUIRES_OK(context, Lock(context, &variables));
    OP_REQUIRES_OK(context, CheckWeights(variables, dtype_, num_biases_));
    const Inputs inputs(context, variables.size());
    OP_REQUIRES_OK(context, CheckShapes(inputs, *variables.tensor(0)));
    OP_REQUIRES_OK(context, CheckValues(inputs, variables.tensor(0)->dim_size(0), set));
    const core::ParallelFor pool = PoolOf(context);
    OP_REQUIRES_OK(context, Run(context, inputs, set, &variables,
                                {core::DenseKernelsOf<float>(set), core::RowKernelsOf(set),
                                 inputs.NumWorkers(context), pool, workspace_}));
  }

 protected:
  virtual absl::Status Lock(tf::OpKernelContext* context, LockedVariables* variables) = 0;
  virtual absl::Status Run(tf::OpKernelContext* context, const Inputs& inputs,
                           core::InstructionSet set, LockedVariables* variables,
                           const core::CandidateResources& resources) = 0;

  std::vector<std::string> WeightNames() const {
    return num_biases_ == 0 ? std::vector<std::string>{"kernel"}
                            : std::vector<std::string>{"kernel", "bias"};
  }

  int num_biases_;

 private:
  tf::DataType dtype_;
  std::mutex mutex_;
  core::Workspace workspace_;  // guarded by mutex_
};

class CandidateLogitsOp : public CandidateOp {
 public:
  using CandidateOp::CandidateOp;

 protected:
  absl::Status Lock(tf::OpKernelContext* context, LockedVariables* variables) override {
    return variables->Lock(context, WeightNames(), LockedVariables::Mode::kShared);
  }

  absl::Status Run(tf::OpKernelContext* context, const Inputs& inputs, core::InstructionSet,
                   LockedVariables* variables, const core::CandidateResources& resources) override {
    tf::Tensor *true_logits, *logits, *hits;
    TF_RETURN_IF_ERROR(context->allocate_output(0, inputs.labels.shape(), &true_logits));
    TF_RETURN_IF_ERROR(context->allocate_output(1, inputs.OfLogits(), &logits));
    TF_RETURN_IF_ERROR(context->allocate_output(2, inputs.OfLogits(), &hits));
    core::CandidateLogits(WeightsOf(*variables, num_biases_), inputs.Batch(), resources,
                          {true_logits->flat<float>().data(), logits->flat<float>().data(),
                           hits->flat<bool>().data()});
    return absl::OkStatus();
  }
};

class CandidateUpdateOp : public CandidateOp {
 public:
  explicit CandidateUpdateOp(tf::OpKernelConstruction* context) : CandidateOp(context) {
    OP_REQUIRES_OK(context, context->GetAttr("num_kernel_slots", &num_kernel_slots_));
    OP_REQUIRES_OK(context, context->GetAttr("num_bias_slots", &num_bias_slots_));
    OP_REQUIRES_OK(context, context->GetAttr("method", &method_));
    OP_REQUIRES_OK(context, context->GetAttr("update", &update_));
  }

 protected:
  absl::Status Lock(tf::OpKernelContext* context, LockedVariables* variables) override {
    std::vector<std::string> names = WeightNames();
    for (int i = 0; i < num_kernel_slots_; ++i) names.push_back(absl::StrCat("kernel_slots ", i));
    for (int i = 0; i < num_bias_slots_; ++i) names.push_back(absl::StrCat("bias_slots ", i));
    return variables->Lock(context, names, LockedVariables::Mode::kExclusive);
  }

  absl::Status Run(tf::OpKernelContext* context, const Inputs& inputs, core::InstructionSet set,
                   LockedVariables* variables, const core::CandidateResources& resources) override {
    TF_RETURN_IF_ERROR(Check(context, inputs, set, *variables));
    tf::Tensor* hidden_gradient;
    TF_RETURN_IF_ERROR(context->allocate_output(0, inputs.hidden.shape(), &hidden_gradient));
    for (int i = 0; update_ && i < variables->size(); ++i) TF_RETURN_IF_ERROR(variables->Own(i));
    core::LayerRows rows = {rule_.Rows(*variables, 0, KernelSlot()), {}};
    if (num_biases_ > 0) rows.bias = rule_.Rows(*variables, 1, BiasSlot());
    const core::CandidateBatch batch = inputs.Batch();
    const core::RowUpdater updater = rule_.Updater(resources.rows);
    const auto run = batch.own ? core::OwnCandidateUpdate : core::SharedCandidateUpdate;
    run(WeightsOf(*variables, num_biases_), rows, batch,
        {Gradient(context, *variables, 0).flat<float>().data(),
         Gradient(context, *variables, 1).flat<float>().data()},
        update_ ? &updater : nullptr, resources, hidden_gradient->flat<float>().data());
    return absl::OkStatus();
  }

 private:
  int KernelSlot() const { return 1 + num_biases_; }
  int BiasSlot() const { return KernelSlot() + num_kernel_slots_; }

  // Inputs after the candidates: of the labels (0) or the candidates (1).
  static const tf::Tensor& Gradient(tf::OpKernelContext* context, const LockedVariables& variables,
                                    int index) {
    return context->input(variables.size() + 3 + index);
  }

  absl::Status Check(tf::OpKernelContext* context, const Inputs& inputs, core::InstructionSet set,
                     const LockedVariables& variables) {
    const int rate = variables.size() + 5;
    TF_RETURN_IF_ERROR(rule_.Set(method_, context->input(rate + 1), context->input(rate)));
    TF_RETURN_IF_ERROR(rule_.CheckSlots(variables, 0, KernelSlot(), num_kernel_slots_));
    if (num_biases_ > 0) {
      TF_RETURN_IF_ERROR(rule_.CheckSlots(variables, 1, BiasSlot(), num_bias_slots_));
    }
    const tf::Tensor& labels = Gradient(context, variables, 0);
    const tf::Tensor& candidates = Gradient(context, variables, 1);
    if (labels.shape() != inputs.labels.shape()) {
      return InvalidArgument("true_gradient must be [N, K] as the labels, ",
                             inputs.labels.shape().DebugString(), "; got shape ",
                             labels.shape().DebugString());
    }
    if (candidates.shape() != inputs.OfLogits()) {
      return InvalidArgument("candidate_gradient must be [N, S] with the N of hidden and the S of ",
                             "candidates, ", inputs.OfLogits().DebugString(), "; got shape ",
                             candidates.shape().DebugString());
    }
    TF_RETURN_IF_ERROR(CheckGradient("true_gradient", labels, inputs.labels, set));
    return CheckGradient("candidate_gradient", candidates, inputs.candidates, set);
  }

  int num_kernel_slots_, num_bias_slots_;
  std::string method_;
  bool update_;
  RowRule rule_;  // used under the lock of Compute
};

REGISTER_KERNEL_BUILDER(Name("TfxCandidateLogits").Device(tf::DEVICE_CPU), CandidateLogitsOp);
REGISTER_KERNEL_BUILDER(Name("TfxCandidateUpdate").Device(tf::DEVICE_CPU), CandidateUpdateOp);

}  // namespace
}  // namespace tfx
