// SPDX-License-Identifier: Apache-2.0

#include <cstdint>
#include <type_traits>

#include "core/bounded_top_k.h"
#include "kernels/cpu_op.h"
#include "kernels/locked_variables.h"
#include "kernels/streamed_logits_checks.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tfx {
namespace {

namespace tf = tensorflow;

absl::Status CheckBounds(const char* name, const tf::Tensor& bounds, tf::DataType dtype,
                         const tf::TensorShape& shape) {
  if (bounds.dtype() == dtype && bounds.shape() == shape) return absl::OkStatus();
  return InvalidArgument(name, " must be ", tf::DataTypeString(dtype), " of shape ",
                         shape.DebugString(), " for this kernel; got ",
                         tf::DataTypeString(bounds.dtype()), " of shape ",
                         bounds.shape().DebugString());
}

// Calls run side by side: nothing is kept from one to the next.
template <typename T>
class BoundedTopKOp : public tf::OpKernel {
 public:
  explicit BoundedTopKOp(tf::OpKernelConstruction* context) : tf::OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("k", &k_));
  }

  void Compute(tf::OpKernelContext* context) override {
    LockedVariables variables;
    OP_REQUIRES_OK(context, variables.Lock(context, {"kernel", "rows", "scales", "errors"},
                                           LockedVariables::Mode::kShared, 2));
    core::Workspace workspace;
    OP_REQUIRES_OK(context, RunOnCpu(context, workspace, [&](const core::Execution& execution) {
                     return Run(context, variables, execution);
                   }));
  }

 private:
  absl::Status Run(tf::OpKernelContext* context, const LockedVariables& variables,
                   const core::Execution& execution) const {
    const tf::Tensor &hidden = context->input(0), &bias = context->input(1);
    const tf::Tensor& kernel = *variables.tensor(0);
    const int64_t batch = hidden.dims() == 2 ? hidden.dim_size(0) : 0;
    const tf::Tensor labels(tf::DT_INT64, {batch, 0}), scores(tf::DT_FLOAT, {0, 0});
    TF_RETURN_IF_ERROR(CheckStreamedLogits(hidden, kernel, bias, labels, scores, k_));
    const int64_t num_classes = kernel.dim_size(0), width = kernel.dim_size(1);
    const int64_t blocks = (num_classes + core::kClassesOfBlock - 1) / core::kClassesOfBlock;
    const tf::TensorShape shape({blocks, core::kClassesOfBlock});
    TF_RETURN_IF_ERROR(CheckBounds("rows", *variables.tensor(1), tf::DT_INT8,
                                   {blocks, width, core::kClassesOfBlock}));
    TF_RETURN_IF_ERROR(CheckBounds("scales", *variables.tensor(2), tf::DT_FLOAT, shape));
    TF_RETURN_IF_ERROR(CheckBounds("errors", *variables.tensor(3), tf::DT_FLOAT, shape));
    core::StreamedLogitsInputs inputs = {};
    inputs.hidden = hidden.flat<float>().data();
    inputs.kernel = kernel.flat<T>().data();
    inputs.bias = bias.NumElements() > 0 ? bias.flat<T>().data() : nullptr;
    inputs.is_bfloat16 = std::is_same_v<T, tf::bfloat16>;
    inputs.batch = batch;
    inputs.width = width;
    inputs.num_classes = num_classes;
    inputs.k = k_;
    inputs.shard = {0, 1, num_classes};
    tf::Tensor *top_scores, *top_ids, *num_candidates;
    TF_RETURN_IF_ERROR(context->allocate_output(0, {batch, k_}, &top_scores));
    TF_RETURN_IF_ERROR(context->allocate_output(1, {batch, k_}, &top_ids));
    TF_RETURN_IF_ERROR(context->allocate_output(2, {batch}, &num_candidates));
    core::BoundedTopK(
        inputs,
        {variables.tensor(1)->flat<int8_t>().data(), variables.tensor(2)->flat<float>().data(),
         variables.tensor(3)->flat<float>().data()},
        execution,
        {top_scores->flat<float>().data(), top_ids->flat<int64_t>().data(),
         num_candidates->flat<int64_t>().data()});
    return absl::OkStatus();
  }

  int64_t k_;
};

#define TFX_REGISTER(T)    \
  REGISTER_KERNEL_BUILDER( \
      Name("TfxBoundedTopK").Device(tf::DEVICE_CPU).TypeConstraint<T>("dtype"), BoundedTopKOp<T>)

TFX_REGISTER(float);
TFX_REGISTER(tf::bfloat16);
#undef TFX_REGISTER

}  // namespace
}  // namespace tfx
