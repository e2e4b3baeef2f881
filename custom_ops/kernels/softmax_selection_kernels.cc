// SPDX-License-Identifier: Apache-2.0

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "core/streamed_logits.h"
#include "kernels/candidate_checks.h"
#include "kernels/check_values.h"
#include "kernels/cpu_op.h"
#include "kernels/invalid_argument.h"
#include "kernels/locked_variables.h"
#include "kernels/streamed_logits_checks.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tfx {
namespace {

namespace tf = tensorflow;

// Writes entries example by example, as [B, S], filled up with -1 and 0.
absl::Status WriteKept(tf::OpKernelContext* context, const core::KeptProbabilities& kept,
                       int64_t batch) {
  const tf::TensorShape shape({batch, kept.MostOfAnExample()});
  tf::Tensor *ids, *probabilities;
  TF_RETURN_IF_ERROR(context->allocate_output(2, shape, &ids));
  TF_RETURN_IF_ERROR(context->allocate_output(3, shape, &probabilities));
  ids->flat<int64_t>().setConstant(-1);
  probabilities->flat<float>().setZero();
  for (int64_t i = 0; i < batch; ++i) {
    const int64_t begin = kept.begin[i], end = kept.begin[i + 1];
    const int64_t at = i * shape.dim_size(1);
    std::copy(kept.ids.begin() + begin, kept.ids.begin() + end, ids->flat<int64_t>().data() + at);
    std::copy(kept.weights.begin() + begin, kept.weights.begin() + end,
              probabilities->flat<float>().data() + at);
  }
  return absl::OkStatus();
}

class SoftmaxSelectionOp : public tf::OpKernel {
 public:
  explicit SoftmaxSelectionOp(tf::OpKernelConstruction* context) : tf::OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("num_biases", &num_biases_));
    OP_REQUIRES_OK(context, context->GetAttr("num_selected", &num_selected_));
    std::string products;
    OP_REQUIRES_OK(context, context->GetAttr("products", &products));
    rounds_ = products == "bfloat16";
    OP_REQUIRES_OK(context, context->GetAttr("dtype", &dtype_));
    OP_REQUIRES(context, num_biases_ <= 1,
                InvalidArgument("bias must be at most one variable; got ", num_biases_));
  }

  void Compute(tf::OpKernelContext* context) override {
    LockedVariables variables;
    std::vector<std::string> names = {"kernel"};
    if (num_biases_ > 0) names.push_back("bias");
    OP_REQUIRES_OK(context, variables.Lock(context, names, LockedVariables::Mode::kShared));
    core::Workspace workspace;
    OP_REQUIRES_OK(context, RunOnCpu(context, workspace, [&](const core::Execution& execution) {
                     return Run(context, variables, execution);
                   }));
  }

 private:
  absl::Status Run(tf::OpKernelContext* context, const LockedVariables& variables,
                   const core::Execution& execution) const {
    const tf::Tensor& kernel = *variables.tensor(0);
    const tf::Tensor bias = num_biases_ > 0 ? *variables.tensor(1) : tf::Tensor(dtype_, {0});
    const tf::Tensor& hidden = context->input(variables.size());
    const tf::Tensor& labels = context->input(variables.size() + 1);
    const tf::Tensor& seed = context->input(variables.size() + 2);
    const tf::Tensor no_scores(tf::DT_FLOAT, {0, 0});
    TF_RETURN_IF_ERROR(CheckLayerShapes(kernel, num_biases_ > 0 ? &bias : nullptr, dtype_));
    TF_RETURN_IF_ERROR(CheckStreamedLogits(hidden, kernel, bias, labels, no_scores, 0));
    TF_RETURN_IF_ERROR(CheckLabels(labels, kernel.dim_size(0), execution.rows));
    TF_RETURN_IF_ERROR(CheckMore(kernel, hidden, seed, execution));

    const int64_t batch = hidden.dim_size(0);
    tf::Tensor *logsumexp, *target_logits;
    TF_RETURN_IF_ERROR(context->allocate_output(0, {batch}, &logsumexp));
    TF_RETURN_IF_ERROR(context->allocate_output(1, labels.shape(), &target_logits));
    const auto seeds = seed.flat<int64_t>();
    const bool keeps_all = num_selected_ == kernel.dim_size(0);
    const core::KeepRule rule = {{static_cast<uint64_t>(seeds(0)), static_cast<uint64_t>(seeds(1))},
                                 keeps_all ? 0.0f : 1.0f / std::max<int64_t>(num_selected_, 1),
                                 num_selected_};
    core::StreamedLogitsInputs inputs = {};
    inputs.hidden = hidden.flat<float>().data();
    inputs.kernel = kernel.data();
    inputs.bias = num_biases_ > 0 ? bias.data() : nullptr;
    inputs.is_bfloat16 = dtype_ == tf::DT_BFLOAT16;
    inputs.rounds = rounds_;
    inputs.labels = labels.flat<int64_t>().data();
    inputs.batch = batch;
    inputs.width = hidden.dim_size(1);
    inputs.num_classes = kernel.dim_size(0);
    inputs.num_labels = labels.dim_size(1);
    inputs.shard = {0, 1, kernel.dim_size(0)};
    inputs.keep = num_selected_ == 0 ? nullptr : &rule;
    core::KeptProbabilities kept;
    kept.begin.assign(batch + 1, 0);
    core::StreamedLogitsOutputs outputs = {};
    outputs.logsumexp = logsumexp->flat<float>().data();
    outputs.target_logits = target_logits->flat<float>().data();
    outputs.kept = &kept;
    core::StreamedLogits(inputs, execution, outputs);
    return WriteKept(context, kept, batch);
  }

  absl::Status CheckMore(const tf::Tensor& kernel, const tf::Tensor& hidden, const tf::Tensor& seed,
                         const core::Execution& execution) const {
    if (seed.shape() != tf::TensorShape({2})) {
      return InvalidArgument("seed must be [2]; got shape ", seed.shape().DebugString());
    }
    if (num_selected_ > kernel.dim_size(0)) {
      return InvalidArgument("num_selected must be in [0, C], C = ", kernel.dim_size(0), "; got ",
                             num_selected_);
    }
    return CheckFinite("hidden", hidden, execution.dense);
  }

  int num_biases_;
  int64_t num_selected_;
  bool rounds_;
  tf::DataType dtype_;
};

REGISTER_KERNEL_BUILDER(Name("TfxSoftmaxSelection").Device(tf::DEVICE_CPU), SoftmaxSelectionOp);

}  // namespace
}  // namespace tfx
