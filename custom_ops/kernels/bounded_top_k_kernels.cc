// SPDX-License-Identifier: Apache-2.0

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "core/bounded_top_k.h"
#include "core/probed_top_k.h"
#include "kernels/cpu_op.h"
#include "kernels/locked_variables.h"
#include "kernels/streamed_logits_op.h"
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

class BoundedTopKOp : public CpuOp {
 public:
  explicit BoundedTopKOp(tf::OpKernelConstruction* context)
      : BoundedTopKOp(context, {"kernel", "rows", "scales", "errors"}) {}

 protected:
  BoundedTopKOp(tf::OpKernelConstruction* context, std::vector<std::string> names)
      : CpuOp(context), names_(std::move(names)) {
    OP_REQUIRES_OK(context, context->GetAttr("k", &k_));
  }

  // The number of blocks that the bounds must have.
  virtual int64_t Blocks(const LockedVariables& variables) const {
    const int64_t num_classes = variables.tensor(0)->dim_size(0);
    return core::BlocksOf(num_classes, core::kClassesOfBlock);
  }

  virtual absl::Status Search(const LockedVariables&, const core::StreamedLogitsInputs& inputs,
                              const core::BoundedRows& bounded, const core::Execution& execution,
                              const core::BoundedTopKOutputs& outputs) const {
    core::BoundedTopK(inputs, bounded, execution, outputs);
    return absl::OkStatus();
  }

 private:
  absl::Status Run(tf::OpKernelContext* context, core::Execution execution) const final {
    LockedVariables variables;
    TF_RETURN_IF_ERROR(variables.Lock(context, names_, LockedVariables::Mode::kShared, 2));
    const tf::Tensor &hidden = context->input(0), &bias = context->input(1);
    const tf::Tensor& kernel = *variables.tensor(0);
    const int64_t batch = hidden.dims() == 2 ? hidden.dim_size(0) : 0;
    const tf::Tensor labels(tf::DT_INT64, {batch, 0}), scores(tf::DT_FLOAT, {0, 0});
    core::StreamedLogitsInputs inputs;
    TF_RETURN_IF_ERROR(GetStreamedLogits(hidden, kernel, bias, labels, scores, k_, &inputs));
    const int64_t width = inputs.weights.width;
    const int64_t blocks = Blocks(variables);
    const tf::TensorShape shape({blocks, core::kClassesOfBlock});
    TF_RETURN_IF_ERROR(CheckBounds("rows", *variables.tensor(1), tf::DT_INT8,
                                   {blocks, width, core::kClassesOfBlock}));
    TF_RETURN_IF_ERROR(CheckBounds("scales", *variables.tensor(2), tf::DT_FLOAT, shape));
    TF_RETURN_IF_ERROR(CheckBounds("errors", *variables.tensor(3), tf::DT_FLOAT, shape));
    tf::Tensor *top_scores, *top_ids, *num_candidates;
    TF_RETURN_IF_ERROR(context->allocate_output(0, {batch, k_}, &top_scores));
    TF_RETURN_IF_ERROR(context->allocate_output(1, {batch, k_}, &top_ids));
    TF_RETURN_IF_ERROR(context->allocate_output(2, {batch}, &num_candidates));
    return Search(
        variables, inputs,
        {variables.tensor(1)->flat<int8_t>().data(), variables.tensor(2)->flat<float>().data(),
         variables.tensor(3)->flat<float>().data()},
        execution,
        {top_scores->flat<float>().data(), top_ids->flat<int64_t>().data(),
         num_candidates->flat<int64_t>().data()});
  }

  const std::vector<std::string> names_;
  int64_t k_;
};

class ProbedTopKOp : public BoundedTopKOp {
 public:
  explicit ProbedTopKOp(tf::OpKernelConstruction* context)
      : BoundedTopKOp(context, {"kernel", "rows", "scales", "errors", "classes", "centers",
                                "offsets", "penalties", "ends"}) {
    OP_REQUIRES_OK(context, context->GetAttr("num_probed", &num_probed_));
  }

 private:
  int64_t Blocks(const LockedVariables& variables) const override {
    const tf::Tensor& rows = *variables.tensor(1);
    return rows.dims() > 0 ? rows.dim_size(0) : 0;
  }

  absl::Status Search(const LockedVariables& variables, const core::StreamedLogitsInputs& inputs,
                      const core::BoundedRows& bounded, const core::Execution& execution,
                      const core::BoundedTopKOutputs& outputs) const override {
    const tf::Tensor &classes = *variables.tensor(4), &centers = *variables.tensor(5);
    const tf::Tensor &offsets = *variables.tensor(6), &penalties = *variables.tensor(7);
    const tf::Tensor& ends = *variables.tensor(8);
    const int64_t blocks = Blocks(variables), num_lists = ends.NumElements();
    const int64_t blocks_of_lists = core::BlocksOf(num_lists, core::kClassesOfBlock);
    TF_RETURN_IF_ERROR(
        CheckBounds("classes", classes, tf::DT_INT32, {blocks, core::kClassesOfBlock}));
    TF_RETURN_IF_ERROR(CheckBounds("ends", ends, tf::DT_INT32, {num_lists}));
    TF_RETURN_IF_ERROR(CheckBounds("centers", centers, tf::DT_FLOAT,
                                   {blocks_of_lists, inputs.weights.width, core::kClassesOfBlock}));
    const tf::TensorShape of_lists({blocks_of_lists, core::kClassesOfBlock});
    TF_RETURN_IF_ERROR(CheckBounds("offsets", offsets, tf::DT_FLOAT, of_lists));
    TF_RETURN_IF_ERROR(CheckBounds("penalties", penalties, tf::DT_FLOAT, of_lists));
    if (num_probed_ > num_lists) {
      return InvalidArgument("num_probed must be at most the number of lists, ", num_lists,
                             "; got ", num_probed_);
    }
    core::BoundedRows in_lists = bounded;
    in_lists.classes = classes.flat<int32_t>().data();
    core::ProbedTopK(
        inputs, in_lists,
        {centers.flat<float>().data(), offsets.flat<float>().data(), penalties.flat<float>().data(),
         ends.flat<int32_t>().data(), num_lists, blocks},
        num_probed_, execution, outputs);
    return absl::OkStatus();
  }

  int64_t num_probed_;
};

REGISTER_KERNEL_BUILDER(Name("TfxBoundedTopK").Device(tf::DEVICE_CPU), BoundedTopKOp);
REGISTER_KERNEL_BUILDER(Name("TfxProbedTopK").Device(tf::DEVICE_CPU), ProbedTopKOp);

}  // namespace
}  // namespace tfx
