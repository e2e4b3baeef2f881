// SPDX-License-Identifier: Apache-2.0

#include <cstdint>
#include <type_traits>

#include "core/streamed_logits.h"
#include "kernels/check_values.h"
#include "kernels/class_shard.h"
#include "kernels/cpu_op.h"
#include "kernels/locked_variables.h"
#include "kernels/streamed_logits_checks.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tfx {
namespace {

namespace tf = tensorflow;

template <typename T>
absl::Status ComputeStreamedLogits(tf::OpKernelContext* context, const tf::Tensor& kernel,
                                   int64_t k, const core::Execution& execution) {
  const tf::Tensor& hidden = context->input(0);
  const tf::Tensor& bias = context->input(2);
  const tf::Tensor& labels = context->input(3);
  const tf::Tensor& target_scores = context->input(4);
  TF_RETURN_IF_ERROR(CheckStreamedLogits(hidden, kernel, bias, labels, target_scores, k));
  core::StreamedLogitsInputs inputs = {};
  int64_t num_classes;
  TF_RETURN_IF_ERROR(GetClassShard(context, 5, kernel.dim_size(0), &inputs.shard, &num_classes));
  TF_RETURN_IF_ERROR(CheckLabels(labels, num_classes, execution.rows));

  const int64_t batch = hidden.dim_size(0);
  tf::Tensor *logsumexp, *target_logits, *target_ranks, *top_scores, *top_ids;
  TF_RETURN_IF_ERROR(context->allocate_output(0, {batch}, &logsumexp));
  TF_RETURN_IF_ERROR(context->allocate_output(1, labels.shape(), &target_logits));
  TF_RETURN_IF_ERROR(context->allocate_output(2, labels.shape(), &target_ranks));
  TF_RETURN_IF_ERROR(context->allocate_output(3, {batch, k}, &top_scores));
  TF_RETURN_IF_ERROR(context->allocate_output(4, {batch, k}, &top_ids));

  inputs.hidden = hidden.flat<float>().data();
  inputs.kernel = kernel.flat<T>().data();
  inputs.bias = bias.NumElements() > 0 ? bias.flat<T>().data() : nullptr;
  inputs.is_bfloat16 = std::is_same_v<T, tf::bfloat16>;
  inputs.labels = labels.flat<int64_t>().data();
  inputs.batch = batch;
  inputs.width = hidden.dim_size(1);
  inputs.num_classes = kernel.dim_size(0);
  inputs.num_labels = labels.dim_size(1);
  inputs.k = k;
  const bool has_scores = target_scores.NumElements() > 0;
  inputs.target_scores = has_scores ? target_scores.flat<float>().data() : nullptr;
  core::StreamedLogitsOutputs outputs = {};
  outputs.logsumexp = logsumexp->flat<float>().data();
  outputs.target_logits = target_logits->flat<float>().data();
  outputs.target_ranks = target_ranks->flat<int64_t>().data();
  outputs.top_scores = top_scores->flat<float>().data();
  outputs.top_ids = top_ids->flat<int64_t>().data();
  core::StreamedLogits(inputs, execution, outputs);
  return absl::OkStatus();
}

// These ops keep nothing from call to call, so that calls may run side by side.
template <typename T>
void ComputeOnCpu(tf::OpKernelContext* context, const tf::Tensor& kernel, int64_t k) {
  core::Workspace workspace;
  OP_REQUIRES_OK(context, RunOnCpu(context, workspace, [&](const core::Execution& execution) {
                   return ComputeStreamedLogits<T>(context, kernel, k, execution);
                 }));
}

template <typename T>
class StreamedLogitsOp : public tf::OpKernel {
 public:
  explicit StreamedLogitsOp(tf::OpKernelConstruction* context) : tf::OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("k", &k_));
  }

  void Compute(tf::OpKernelContext* context) override {
    ComputeOnCpu<T>(context, context->input(1), k_);
  }

 private:
  int64_t k_;
};

template <typename T>
class ResourceStreamedLogitsOp : public tf::OpKernel {
 public:
  explicit ResourceStreamedLogitsOp(tf::OpKernelConstruction* context) : tf::OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("k", &k_));
  }

  void Compute(tf::OpKernelContext* context) override {
    LockedVariables variables;
    OP_REQUIRES_OK(context, variables.Lock(context, {"kernel"}, LockedVariables::Mode::kShared, 1));
    ComputeOnCpu<T>(context, *variables.tensor(0), k_);
  }

 private:
  int64_t k_;
};

#define TFX_REGISTER(T)                                                                    \
  REGISTER_KERNEL_BUILDER(                                                                 \
      Name("TfxStreamedLogits").Device(tf::DEVICE_CPU).TypeConstraint<T>("dtype"),         \
      StreamedLogitsOp<T>);                                                                \
  REGISTER_KERNEL_BUILDER(                                                                 \
      Name("TfxResourceStreamedLogits").Device(tf::DEVICE_CPU).TypeConstraint<T>("dtype"), \
      ResourceStreamedLogitsOp<T>)

TFX_REGISTER(float);
TFX_REGISTER(tf::bfloat16);
#undef TFX_REGISTER

}  // namespace
}  // namespace tfx
