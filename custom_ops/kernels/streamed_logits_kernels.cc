// SPDX-License-Identifier: Apache-2.0

#include <cstdint>

#include "core/streamed_logits.h"
#include "kernels/check_values.h"
#include "kernels/cpu_op.h"
#include "kernels/locked_variables.h"
#include "kernels/streamed_logits_arguments.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tfx {
namespace {

namespace tf = tensorflow;

template <typename T>
absl::Status ComputeStreamedLogits(tf::OpKernelContext* context, const tf::Tensor& kernel,
                                   int64_t k, const core::Execution& execution) {
  core::StreamedLogitsInputs inputs;
  core::StreamedLogitsOutputs outputs;
  int64_t num_classes;
  TF_RETURN_IF_ERROR(ReadStreamedLogits<T>(context, kernel, k, &inputs, &num_classes));
  TF_RETURN_IF_ERROR(CheckLabels(context->input(3), num_classes, execution.rows));
  TF_RETURN_IF_ERROR(AllocateStreamedLogits(context, inputs, &outputs));
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
