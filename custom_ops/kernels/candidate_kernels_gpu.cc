// SPDX-License-Identifier: Apache-2.0
//
// The ops on labels and candidates on a GPU, for weights in float32 and bfloat16. Ids and numbers
// on the device are not looked at: an id out of range is as padding. The learning rate stays on the
// device, too.

#include <mutex>

#include "core/gpu/candidate_logits.h"
#include "core/gpu/candidate_update.h"
#include "kernels/candidate_checks.h"
#include "kernels/candidate_op.h"
#include "kernels/gpu_op.h"
#include "kernels/layer_update.h"
#include "kernels/locked_variables.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tfx {
namespace {

namespace tf = tensorflow;

class CandidateLogitsGpuOp : public tf::OpKernel {
 public:
  explicit CandidateLogitsGpuOp(tf::OpKernelConstruction* context) : tf::OpKernel(context) {
    OP_REQUIRES_OK(context, layer_.ReadAttributes(context));
  }

  void Compute(tf::OpKernelContext* context) override {
    OP_REQUIRES_OK(context, Explained(Run(context)));
  }

 private:
  absl::Status Run(tf::OpKernelContext* context) {
    LockedVariables variables;
    TF_RETURN_IF_ERROR(variables.Lock(context, layer_.Names(), LockedVariables::Mode::kShared));
    const CandidateInputs inputs(context, variables.size());
    TF_RETURN_IF_ERROR(layer_.CheckShapes(variables, inputs));
    const core::LayerWeights weights = layer_.Weights(variables);
    const core::CandidateBatch batch = inputs.Batch();
    tf::Tensor scratch;
    const int64_t bytes = core::gpu::CandidateLogitsScratchBytes(weights, batch);
    TF_RETURN_IF_ERROR(AllocateScratch(context, bytes, &scratch));
    core::CandidateLogitsOutputs outputs;
    TF_RETURN_IF_ERROR(AllocateCandidateLogits(context, inputs, &outputs));
    return StatusOf(
        core::gpu::CandidateLogits(StreamOf(context), weights, batch, scratch.data(), outputs));
  }

  CandidateLayer layer_;
};

class CandidateUpdateGpuOp : public tf::OpKernel {
 public:
  explicit CandidateUpdateGpuOp(tf::OpKernelConstruction* context) : tf::OpKernel(context) {
    OP_REQUIRES_OK(context, layer_.ReadAttributes(context));
    OP_REQUIRES_OK(context, update_.ReadAttributes(context));
  }

  void Compute(tf::OpKernelContext* context) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    OP_REQUIRES_OK(context, Explained(Run(context)));
  }

 private:
  absl::Status Run(tf::OpKernelContext* context) {
    LockedVariables variables;
    TF_RETURN_IF_ERROR(variables.Lock(context, update_.Names(), LockedVariables::Mode::kExclusive));
    const CandidateInputs inputs(context, variables.size());
    TF_RETURN_IF_ERROR(layer_.CheckShapes(variables, inputs));
    const CandidateGradientInputs gradients(context, variables.size() + 3);
    TF_RETURN_IF_ERROR(update_.SetForDeviceRate(context, variables, gradients.learning_rate));
    TF_RETURN_IF_ERROR(CheckGradientShapes(gradients.labels, gradients.candidates,
                                           inputs.labels.shape(), inputs.OfLogits()));
    const core::CandidateBatch batch = inputs.Batch();
    tf::Tensor scratch, *hidden_gradient;
    const int64_t bytes = core::gpu::CandidateUpdateScratchBytes(layer_.Weights(variables), batch);
    TF_RETURN_IF_ERROR(AllocateScratch(context, bytes, &scratch));
    TF_RETURN_IF_ERROR(context->allocate_output(0, inputs.hidden.shape(), &hidden_gradient));
    TF_RETURN_IF_ERROR(update_.Own(&variables));
    const auto rule =
        update_.RuleOnGpu(context->input(gradients.learning_rate).scalar<float>().data());
    return StatusOf(core::gpu::CandidateUpdate(
        StreamOf(context), layer_.Weights(variables), update_.Rows(variables), batch,
        gradients.Gradients(), rule.has_value() ? &*rule : nullptr, scratch.data(),
        hidden_gradient->flat<float>().data()));
  }

  std::mutex mutex_;
  CandidateLayer layer_;
  LayerUpdate update_;  // guarded by mutex_
};

#define TFX_REGISTER(T)                                   \
  REGISTER_KERNEL_BUILDER(Name("TfxCandidateLogits")      \
                              .Device(tf::DEVICE_GPU)     \
                              .TypeConstraint<T>("dtype") \
                              .HostMemory("kernel")       \
                              .HostMemory("bias"),        \
                          CandidateLogitsGpuOp);          \
  REGISTER_KERNEL_BUILDER(Name("TfxCandidateUpdate")      \
                              .Device(tf::DEVICE_GPU)     \
                              .TypeConstraint<T>("dtype") \
                              .HostMemory("kernel")       \
                              .HostMemory("bias")         \
                              .HostMemory("kernel_slots") \
                              .HostMemory("bias_slots")   \
                              .HostMemory("rule"),        \
                          CandidateUpdateGpuOp)
TFX_REGISTER(float);
TFX_REGISTER(tf::bfloat16);
#undef TFX_REGISTER

}  // namespace
}  // namespace tfx
