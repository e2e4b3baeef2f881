// SPDX-License-Identifier: Apache-2.0
//
// The ops on labels and candidates on a GPU, for weights in float32 and bfloat16. What is wrong
// with ids and numbers is found on the device, and is an error of a later op; a step is none then.

#include "core/gpu/candidate_logits.h"
#include "core/gpu/candidate_update.h"
#include "kernels/candidate_op.h"
#include "kernels/candidate_refusals_gpu.h"
#include "kernels/gpu_op.h"
#include "kernels/layer.h"
#include "kernels/locked_variables.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tfx {
namespace {

namespace tf = tensorflow;

// Starts to check arguments, for the errors of later ops. Returns the place of the result on the
// device.
absl::Status BeginChecks(tf::OpKernelContext* context, const core::gpu::CandidateNumbers& numbers,
                         tf::Tensor* memory, core::gpu::CandidateFault** fault) {
  tf::core::RefCountPtr<CandidateRefusals> refusals;
  TF_RETURN_IF_ERROR(CandidateRefusals::Of(context, &refusals));
  TF_RETURN_IF_ERROR(AllocateScratch(context, sizeof(core::gpu::CandidateFault), memory));
  *fault = static_cast<core::gpu::CandidateFault*>(memory->data());
  return refusals->Find(context, numbers, *fault);
}

class CandidateLogitsGpuOp : public GpuOp {
 public:
  explicit CandidateLogitsGpuOp(tf::OpKernelConstruction* context) : GpuOp(context) {
    OP_REQUIRES_OK(context, layer_.ReadAttributes(context));
  }

 protected:
  absl::Status Run(tf::OpKernelContext* context) const override {
    TF_RETURN_IF_ERROR(CandidateRefusals::Earlier(context));
    LockedVariables variables;
    TF_RETURN_IF_ERROR(variables.Lock(context, layer_.Names(), LockedVariables::Mode::kShared));
    TF_RETURN_IF_ERROR(layer_.CheckShapes(variables));
    const CandidateInputs inputs(context, variables.size());
    const core::LayerWeights weights = layer_.Weights(variables);
    TF_RETURN_IF_ERROR(inputs.CheckShapes(weights.width));
    const core::CandidateBatch batch = inputs.Batch();
    tf::Tensor scratch;
    const int64_t bytes = core::gpu::CandidateLogitsScratchBytes(weights, batch);
    TF_RETURN_IF_ERROR(AllocateScratch(context, bytes, &scratch));
    core::CandidateLogitsOutputs outputs;
    TF_RETURN_IF_ERROR(inputs.AllocateLogits(context, &outputs));
    tf::Tensor memory;
    core::gpu::CandidateFault* fault;
    TF_RETURN_IF_ERROR(BeginChecks(
        context, {weights.num_classes, weights.width, batch, {}, nullptr, 0}, &memory, &fault));
    return StatusOf(
        core::gpu::CandidateLogits(StreamOf(context), weights, batch, scratch.data(), outputs));
  }

 private:
  Layer layer_;
};

class CandidateUpdateGpuOp : public GpuOp {
 public:
  explicit CandidateUpdateGpuOp(tf::OpKernelConstruction* context) : GpuOp(context) {
    OP_REQUIRES_OK(context, update_.ReadAttributes(context));
    OP_REQUIRES_OK(context, context->GetAttr("gradient", &gradient_));
  }

 protected:
  absl::Status Run(tf::OpKernelContext* context) const override {
    TF_RETURN_IF_ERROR(CandidateRefusals::Earlier(context));
    LayerUpdate update = update_;
    LockedVariables variables;
    TF_RETURN_IF_ERROR(update.Lock(context, &variables));
    const CandidateInputs inputs(context, variables.size());
    TF_RETURN_IF_ERROR(inputs.CheckShapes(variables.tensor(0)->dim_size(1)));
    TF_RETURN_IF_ERROR(update.Set(context, variables, inputs.learning_rate));
    core::CandidateGradients gradients;
    TF_RETURN_IF_ERROR(inputs.GetGradients(context, &gradients));
    const core::CandidateBatch batch = inputs.Batch();
    tf::Tensor scratch;
    const int64_t bytes =
        core::gpu::CandidateUpdateScratchBytes(update.layer().Weights(variables), batch);
    TF_RETURN_IF_ERROR(AllocateScratch(context, bytes, &scratch));
    float* hidden_gradient;
    TF_RETURN_IF_ERROR(inputs.AllocateGradient(context, gradient_, &hidden_gradient));
    TF_RETURN_IF_ERROR(update.Own(&variables));
    const float* rate = context->input(inputs.learning_rate).scalar<float>().data();
    const auto rule = update.RuleOnGpu(rate);
    const core::LayerWeights weights = update.layer().Weights(variables);
    tf::Tensor memory;
    core::gpu::CandidateFault* fault;
    TF_RETURN_IF_ERROR(BeginChecks(context,
                                   {weights.num_classes, weights.width, batch, gradients, rate,
                                    rule.has_value() ? rule->weight_decay : 0},
                                   &memory, &fault));
    return StatusOf(core::gpu::CandidateUpdate(
        StreamOf(context), weights, update.Rows(variables), batch, gradients,
        rule.has_value() ? &*rule : nullptr, fault, scratch.data(), hidden_gradient));
  }

 private:
  LayerUpdate update_;  // the attributes
  bool gradient_;
};

REGISTER_KERNEL_BUILDER(
    Name("TfxCandidateLogits").Device(tf::DEVICE_GPU).HostMemory("kernel").HostMemory("bias"),
    CandidateLogitsGpuOp);
REGISTER_KERNEL_BUILDER(Name("TfxCandidateUpdate")
                            .Device(tf::DEVICE_GPU)
                            .HostMemory("kernel")
                            .HostMemory("bias")
                            .HostMemory("kernel_slots")
                            .HostMemory("bias_slots")
                            .HostMemory("rule"),
                        CandidateUpdateGpuOp);

}  // namespace
}  // namespace tfx
