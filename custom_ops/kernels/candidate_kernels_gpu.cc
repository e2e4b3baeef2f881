// SPDX-License-Identifier: Apache-2.0
//
// The ops on labels and candidates on a GPU, for weights in float32 and bfloat16. What is wrong
// with ids and numbers is found on the device, and is an error of a later op; a step is none then.

#include <mutex>

#include "core/gpu/candidate_logits.h"
#include "core/gpu/candidate_update.h"
#include "kernels/candidate_checks.h"
#include "kernels/candidate_op.h"
#include "kernels/candidate_refusals_gpu.h"
#include "kernels/gpu_op.h"
#include "kernels/layer_update.h"
#include "kernels/locked_variables.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tfx {
namespace {

namespace tf = tensorflow;

// Begins to find what is wrong, for the errors of later ops. Gives where the device has it.
absl::Status BeginChecks(tf::OpKernelContext* context, const core::gpu::CandidateNumbers& numbers,
                         tf::Tensor* memory, core::gpu::CandidateFault** fault) {
  tf::core::RefCountPtr<CandidateRefusals> refusals;
  TF_RETURN_IF_ERROR(CandidateRefusals::Of(context, &refusals));
  TF_RETURN_IF_ERROR(AllocateScratch(context, sizeof(core::gpu::CandidateFault), memory));
  *fault = static_cast<core::gpu::CandidateFault*>(memory->data());
  return refusals->Find(context, numbers, *fault);
}

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
    TF_RETURN_IF_ERROR(CandidateRefusals::Earlier(context));
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
    tf::Tensor memory;
    core::gpu::CandidateFault* fault;
    TF_RETURN_IF_ERROR(BeginChecks(
        context, {weights.num_classes, weights.width, batch, {}, nullptr, 0}, &memory, &fault));
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
    TF_RETURN_IF_ERROR(CandidateRefusals::Earlier(context));
    LockedVariables variables;
    TF_RETURN_IF_ERROR(variables.Lock(context, update_.Names(), update_.LockMode()));
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
    const float* rate = context->input(gradients.learning_rate).scalar<float>().data();
    const auto rule = update_.RuleOnGpu(rate);
    const core::LayerWeights weights = layer_.Weights(variables);
    tf::Tensor memory;
    core::gpu::CandidateFault* fault;
    TF_RETURN_IF_ERROR(
        BeginChecks(context,
                    {weights.num_classes, weights.width, batch, gradients.Gradients(), rate,
                     rule.has_value() ? rule->weight_decay : 0},
                    &memory, &fault));
    return StatusOf(
        core::gpu::CandidateUpdate(StreamOf(context), weights, update_.Rows(variables), batch,
                                   gradients.Gradients(), rule.has_value() ? &*rule : nullptr,
                                   fault, scratch.data(), hidden_gradient->flat<float>().data()));
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
