// SPDX-License-Identifier: Apache-2.0

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "core/streamed_logits.h"
#include "kernels/candidate_checks.h"
#include "kernels/check_values.h"
#include "kernels/class_shard.h"
#include "kernels/cpu_op.h"
#include "kernels/invalid_argument.h"
#include "kernels/locked_variables.h"
#include "kernels/streamed_logits_checks.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tfx {
namespace {

namespace tf = tensorflow;

// Writes values of entries example by example, as [B, S], filled up with `padding`.
template <typename T>
absl::Status WriteValues(tf::OpKernelContext* context, int output,
                         const core::KeptProbabilities& kept, const std::vector<T>& values,
                         T padding) {
  const int64_t batch = kept.begin.size() - 1, most = kept.MostOfAnExample();
  tf::Tensor* tensor;
  TF_RETURN_IF_ERROR(context->allocate_output(output, {batch, most}, &tensor));
  T* to = tensor->flat<T>().data();
  for (int64_t i = 0; i < batch; ++i, to += most) {
    const auto begin = values.begin() + kept.begin[i], end = values.begin() + kept.begin[i + 1];
    std::fill(std::copy(begin, end, to), to + most, padding);
  }
  return absl::OkStatus();
}

absl::Status WriteKept(tf::OpKernelContext* context, const core::KeptProbabilities& kept) {
  TF_RETURN_IF_ERROR(WriteValues(context, 2, kept, kept.ids, int64_t{-1}));
  TF_RETURN_IF_ERROR(WriteValues(context, 3, kept, kept.weights, 0.0f));
  TF_RETURN_IF_ERROR(WriteValues(context, 4, kept, kept.logits, 0.0f));
  return WriteValues(context, 5, kept, kept.keys, 0.0f);
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
    core::StreamedLogitsInputs inputs = {};
    int64_t num_classes;
    TF_RETURN_IF_ERROR(GetClassShard(context, variables.size() + 3, kernel.dim_size(0),
                                     &inputs.shard, &num_classes));
    TF_RETURN_IF_ERROR(CheckLabels(labels, num_classes, execution.rows));
    TF_RETURN_IF_ERROR(CheckMore(num_classes, hidden, seed, execution));

    const int64_t batch = hidden.dim_size(0);
    tf::Tensor *logsumexp, *target_logits;
    TF_RETURN_IF_ERROR(context->allocate_output(0, {batch}, &logsumexp));
    TF_RETURN_IF_ERROR(context->allocate_output(1, labels.shape(), &target_logits));
    const auto seeds = seed.flat<int64_t>();
    const bool keeps_all = num_selected_ == num_classes;
    const core::KeepRule rule = {{static_cast<uint64_t>(seeds(0)), static_cast<uint64_t>(seeds(1))},
                                 keeps_all ? 0.0f : 1.0f / std::max<int64_t>(num_selected_, 1),
                                 num_selected_};
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
    inputs.keep = num_selected_ == 0 ? nullptr : &rule;
    core::KeptProbabilities kept;
    kept.begin.assign(batch + 1, 0);
    core::StreamedLogitsOutputs outputs = {};
    outputs.logsumexp = logsumexp->flat<float>().data();
    outputs.target_logits = target_logits->flat<float>().data();
    outputs.kept = &kept;
    core::StreamedLogits(inputs, execution, outputs);
    return WriteKept(context, kept);
  }

  absl::Status CheckMore(int64_t num_classes, const tf::Tensor& hidden, const tf::Tensor& seed,
                         const core::Execution& execution) const {
    if (seed.shape() != tf::TensorShape({2})) {
      return InvalidArgument("seed must be [2]; got shape ", seed.shape().DebugString());
    }
    if (num_selected_ > num_classes) {
      return InvalidArgument("num_selected must be in [0, C], C = ", num_classes, "; got ",
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
