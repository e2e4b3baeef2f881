// SPDX-License-Identifier: Apache-2.0

#include <cstdint>
#include <limits>
#include <string>
#include <type_traits>

#include "core/streamed_logits.h"
#include "kernels/invalid_argument.h"
#include "kernels/locked_variables.h"
#include "kernels/parallel_for.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tfx {
namespace {

namespace tf = tensorflow;

// Refuses the first label that is out of range.
absl::Status CheckLabels(const tf::Tensor& labels, int64_t num_classes) {
  const auto matrix = labels.matrix<int64_t>();
  for (int64_t b = 0; b < matrix.dimension(0); ++b) {
    for (int64_t slot = 0; slot < matrix.dimension(1); ++slot) {
      if (matrix(b, slot) >= -1 && matrix(b, slot) < num_classes) continue;
      return InvalidArgument("labels must be class ids in [-1, num_classes), where num_classes is ",
                             num_classes, "; got ", matrix(b, slot), " at position [", b, ", ",
                             slot, "]");
    }
  }
  return absl::OkStatus();
}

absl::Status CheckArguments(const tf::Tensor& hidden, const tf::Tensor& kernel,
                            const tf::Tensor& bias, const tf::Tensor& labels, int64_t k) {
  if (hidden.dims() != 2 || kernel.dims() != 2 || bias.dims() != 1 || labels.dims() != 2) {
    return InvalidArgument("hidden, kernel, bias and labels must have rank 2, 2, 1 and 2; got ",
                           hidden.dims(), ", ", kernel.dims(), ", ", bias.dims(), " and ",
                           labels.dims());
  }
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  const int64_t num_classes = kernel.dim_size(0);
  if (hidden.dim_size(0) > kMost || hidden.dim_size(1) > kMost || labels.dim_size(1) > kMost) {
    return InvalidArgument("hidden [B, D] and labels [B, K] must have dimensions below 2^31; got ",
                           "shapes ", hidden.shape().DebugString(), " and ",
                           labels.shape().DebugString());
  }
  if (kernel.dtype() != bias.dtype()) {
    return InvalidArgument("kernel must have the dtype of bias, ", tf::DataTypeString(bias.dtype()),
                           "; got ", tf::DataTypeString(kernel.dtype()));
  }
  if (num_classes > kMost) {
    return InvalidArgument("kernel must have fewer than 2^31 rows; got ", num_classes);
  }
  if (hidden.dim_size(1) != kernel.dim_size(1)) {
    return InvalidArgument("hidden must have as many columns as kernel: ", kernel.dim_size(1),
                           "; got ", hidden.dim_size(1));
  }
  if (bias.dim_size(0) != num_classes && bias.dim_size(0) != 0) {
    return InvalidArgument("bias must have one entry for each row of kernel: ", num_classes,
                           "; got ", bias.dim_size(0));
  }
  if (labels.dim_size(0) != hidden.dim_size(0)) {
    return InvalidArgument("labels must have as many rows as hidden: ", hidden.dim_size(0),
                           "; got ", labels.dim_size(0));
  }
  if (k > num_classes) {
    return InvalidArgument("k must be at most num_classes, which is ", num_classes, "; got ", k);
  }
  return CheckLabels(labels, num_classes);
}

template <typename T>
void ComputeStreamedLogits(tf::OpKernelContext* context, const tf::Tensor& kernel, int64_t k) {
  const tf::Tensor& hidden = context->input(0);
  const tf::Tensor& bias = context->input(2);
  const tf::Tensor& labels = context->input(3);
  OP_REQUIRES_OK(context, CheckArguments(hidden, kernel, bias, labels, k));
  core::InstructionSet set;
  std::string error;
  OP_REQUIRES(context, core::ChooseInstructionSet(&set, &error), InvalidArgument(error));

  const int64_t batch = hidden.dim_size(0);
  tf::Tensor *logsumexp, *target_logits, *target_ranks, *top_scores, *top_ids;
  OP_REQUIRES_OK(context, context->allocate_output(0, {batch}, &logsumexp));
  OP_REQUIRES_OK(context, context->allocate_output(1, labels.shape(), &target_logits));
  OP_REQUIRES_OK(context, context->allocate_output(2, labels.shape(), &target_ranks));
  OP_REQUIRES_OK(context, context->allocate_output(3, {batch, k}, &top_scores));
  OP_REQUIRES_OK(context, context->allocate_output(4, {batch, k}, &top_ids));

  core::StreamedLogitsInputs inputs;
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
  core::StreamedLogitsOutputs outputs;
  outputs.logsumexp = logsumexp->flat<float>().data();
  outputs.target_logits = target_logits->flat<float>().data();
  outputs.target_ranks = target_ranks->flat<int64_t>().data();
  outputs.top_scores = top_scores->flat<float>().data();
  outputs.top_ids = top_ids->flat<int64_t>().data();
  core::StreamedLogits(inputs, set, NumWorkers(context), PoolOf(context), outputs);
}

template <typename T>
class StreamedLogitsOp : public tf::OpKernel {
 public:
  explicit StreamedLogitsOp(tf::OpKernelConstruction* context) : tf::OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("k", &k_));
  }

  void Compute(tf::OpKernelContext* context) override {
    ComputeStreamedLogits<T>(context, context->input(1), k_);
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
    ComputeStreamedLogits<T>(context, *variables.tensor(0), k_);
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
