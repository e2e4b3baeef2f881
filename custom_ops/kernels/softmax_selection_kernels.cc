// SPDX-License-Identifier: Apache-2.0

#include <algorithm>
#include <cstdint>
#include <vector>

#include "core/streamed_logits.h"
#include "kernels/check_values.h"
#include "kernels/cpu_op.h"
#include "kernels/softmax_selection_op.h"
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

class SoftmaxSelectionOp : public CpuOp {
 public:
  explicit SoftmaxSelectionOp(tf::OpKernelConstruction* context) : CpuOp(context), call_(context) {}

 protected:
  absl::Status Run(tf::OpKernelContext* context, core::Execution execution) const override {
    SoftmaxSelectionArguments arguments;
    TF_RETURN_IF_ERROR(call_.Get(context, &arguments));
    TF_RETURN_IF_ERROR(CheckLabels(*arguments.labels, arguments.num_classes, execution.rows));
    TF_RETURN_IF_ERROR(CheckFinite("hidden", *arguments.hidden, execution.dense));
    const auto seeds = arguments.seed->flat<int64_t>();
    core::KeepRule& rule = arguments.rule;
    for (int i = 0; i < 2; ++i) rule.seed[i] = static_cast<uint64_t>(seeds(i));
    core::StreamedLogitsInputs& inputs = arguments.inputs;
    inputs.keep = rule.num_expected == 0 ? nullptr : &rule;
    core::KeptProbabilities kept;
    kept.begin.assign(inputs.batch + 1, 0);
    arguments.outputs.kept = &kept;
    core::StreamedLogits(inputs, execution, arguments.outputs);
    return WriteKept(context, kept);
  }

 private:
  const SoftmaxSelectionCall call_;
};

REGISTER_KERNEL_BUILDER(Name("TfxSoftmaxSelection").Device(tf::DEVICE_CPU), SoftmaxSelectionOp);

}  // namespace
}  // namespace tfx
