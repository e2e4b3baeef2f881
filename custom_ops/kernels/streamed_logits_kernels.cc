// SPDX-License-Identifier: Apache-2.0

#include <cstdint>

#include "core/streamed_logits.h"
#include "kernels/check_values.h"
#include "kernels/cpu_op.h"
#include "kernels/invalid_argument.h"
#include "kernels/locked_variables.h"
#include "kernels/streamed_logits_op.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tfx {
namespace {

namespace tf = tensorflow;

class StreamedLogitsOp : public CpuOp {
 public:
  explicit StreamedLogitsOp(tf::OpKernelConstruction* context) : CpuOp(context), call_(context) {}

 protected:
  absl::Status Run(tf::OpKernelContext* context, core::Execution execution) const override {
    LockedVariables variables;
    core::StreamedLogitsInputs inputs;
    core::StreamedLogitsOutputs outputs;
    int64_t num_classes;
    TF_RETURN_IF_ERROR(call_.Get(context, &variables, &inputs, &num_classes));
    TF_RETURN_IF_ERROR(CheckLabels(context->input(3), num_classes, execution.rows));
    TF_RETURN_IF_ERROR(call_.Allocate(context, inputs, &outputs));
    core::StreamedLogits(inputs, execution, outputs);
    return absl::OkStatus();
  }

 private:
  const StreamedLogitsCall call_;
};

class FilteredTopKOp : public CpuOp {
 public:
  explicit FilteredTopKOp(tf::OpKernelConstruction* context) : CpuOp(context) {
    OP_REQUIRES_OK(context, context->GetAttr("k", &k_));
  }

 protected:
  absl::Status Run(tf::OpKernelContext* context, core::Execution execution) const override {
    LockedVariables variables;
    TF_RETURN_IF_ERROR(variables.Lock(context, {"kernel"}, LockedVariables::Mode::kShared, 1));
    const tf::Tensor &hidden = context->input(0), &excluded = context->input(3);
    const tf::Tensor &groups = context->input(4), &wanted = context->input(5);
    const int64_t batch = hidden.dims() == 2 ? hidden.dim_size(0) : 0;
    const tf::Tensor labels(tf::DT_INT64, {batch, 0}), scores(tf::DT_FLOAT, {0, 0});
    core::StreamedLogitsInputs inputs;
    TF_RETURN_IF_ERROR(GetStreamedLogits(hidden, *variables.tensor(0), context->input(2), labels,
                                         scores, k_, &inputs));
    const int64_t num_rows = inputs.weights.num_classes;
    int64_t num_classes;
    TF_RETURN_IF_ERROR(GetClassShard(context, 6, num_rows, &inputs.shard, &num_classes));
    if (excluded.dims() != 2 || excluded.dim_size(0) != batch) {
      return InvalidArgument("excluded must be [B, E] with the B of hidden, ", batch,
                             "; got shape ", excluded.shape().DebugString());
    }
    TF_RETURN_IF_ERROR(CheckIds("excluded", excluded, -1, num_classes, execution));
    const bool has_groups = groups.NumElements() > 0;
    if (groups.dims() != 1 || (has_groups && groups.dim_size(0) != num_rows)) {
      return InvalidArgument("groups must have one entry for each row of kernel, ", num_rows,
                             ", or none; got shape ", groups.shape().DebugString());
    }
    if (wanted.dims() != 1 || (has_groups && wanted.dim_size(0) != batch)) {
      return InvalidArgument("wanted must have one entry for each row of hidden, ", batch,
                             ", where there are groups; got shape ", wanted.shape().DebugString());
    }
    const core::ClassFilter filter = {excluded.flat<int64_t>().data(), excluded.dim_size(1),
                                      has_groups ? groups.flat<int32_t>().data() : nullptr,
                                      wanted.flat<int32_t>().data()};
    inputs.filter = &filter;
    tf::Tensor *logsumexp, *top_scores, *top_ids;
    TF_RETURN_IF_ERROR(context->allocate_output(0, {batch}, &logsumexp));
    TF_RETURN_IF_ERROR(context->allocate_output(1, {batch, k_}, &top_scores));
    TF_RETURN_IF_ERROR(context->allocate_output(2, {batch, k_}, &top_ids));
    core::StreamedLogits(
        inputs, execution,
        {logsumexp->flat<float>().data(), nullptr, nullptr, top_scores->flat<float>().data(),
         top_ids->flat<int64_t>().data(), nullptr});
    return absl::OkStatus();
  }

 private:
  int64_t k_;
};

REGISTER_KERNEL_BUILDER(Name("TfxFilteredTopK").Device(tf::DEVICE_CPU), FilteredTopKOp);
REGISTER_KERNEL_BUILDER(Name("TfxStreamedLogits").Device(tf::DEVICE_CPU), StreamedLogitsOp);
REGISTER_KERNEL_BUILDER(Name("TfxResourceStreamedLogits").Device(tf::DEVICE_CPU), StreamedLogitsOp);

}  // namespace
}  // namespace tfx
