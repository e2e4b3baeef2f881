// SPDX-License-Identifier: Apache-2.0

#include "kernels/candidate_op.h"

#include "kernels/candidate_checks.h"
#include "kernels/invalid_argument.h"
#include "kernels/layer_update.h"

namespace tfx {

namespace tf = tensorflow;

core::CandidateBatch CandidateInputs::Batch() const {
  return {hidden.flat<float>().data(),
          labels.flat<int64_t>().data(),
          candidates.flat<int64_t>().data(),
          candidates.dims() == 2,
          hidden.dim_size(0),
          labels.dim_size(1),
          OfLogits().dim_size(1)};
}

absl::Status CandidateLayer::ReadAttributes(tf::OpKernelConstruction* context) {
  TF_RETURN_IF_ERROR(context->GetAttr("num_biases", &num_biases_));
  TF_RETURN_IF_ERROR(context->GetAttr("dtype", &dtype_));
  if (num_biases_ <= 1) return absl::OkStatus();
  return InvalidArgument("bias must be at most one variable; got ", num_biases_);
}

std::vector<std::string> CandidateLayer::Names() const {
  return num_biases_ == 0 ? std::vector<std::string>{"kernel"}
                          : std::vector<std::string>{"kernel", "bias"};
}

absl::Status CandidateLayer::CheckShapes(const LockedVariables& variables,
                                         const CandidateInputs& inputs) const {
  const tf::Tensor& kernel = *variables.tensor(0);
  TF_RETURN_IF_ERROR(
      CheckLayerShapes(kernel, num_biases_ == 0 ? nullptr : variables.tensor(1), dtype_));
  return CheckBatchShapes(inputs.hidden, inputs.labels, inputs.candidates, kernel.dim_size(1));
}

core::LayerWeights CandidateLayer::Weights(const LockedVariables& variables) const {
  return WeightsOf(variables, num_biases_);
}

absl::Status AllocateCandidateLogits(tf::OpKernelContext* context, const CandidateInputs& inputs,
                                     core::CandidateLogitsOutputs* outputs) {
  tf::Tensor *true_logits, *logits, *hits;
  TF_RETURN_IF_ERROR(context->allocate_output(0, inputs.labels.shape(), &true_logits));
  TF_RETURN_IF_ERROR(context->allocate_output(1, inputs.OfLogits(), &logits));
  TF_RETURN_IF_ERROR(context->allocate_output(2, inputs.OfLogits(), &hits));
  *outputs = {true_logits->flat<float>().data(), logits->flat<float>().data(),
              hits->flat<bool>().data()};
  return absl::OkStatus();
}

}  // namespace tfx
