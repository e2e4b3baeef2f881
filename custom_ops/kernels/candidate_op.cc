// SPDX-License-Identifier: Apache-2.0

#include "kernels/candidate_op.h"

#include <algorithm>
#include <limits>

#include "kernels/invalid_argument.h"

namespace tfx {

namespace tf = tensorflow;

namespace {

// Whether N (K + S) is below 2^31, and so are N and K + S.
bool AreFew(const tf::Tensor& labels, const tf::Tensor& candidates) {
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  const int64_t batch = labels.dim_size(0), num_labels = labels.dim_size(1);
  const int64_t num_candidates = candidates.dim_size(candidates.dims() - 1);
  return batch <= kMost && num_labels <= kMost && num_candidates <= kMost - num_labels &&
         batch <= kMost / std::max<int64_t>(num_labels + num_candidates, 1);
}

}  // namespace

absl::Status CheckBatchShapes(const tf::Tensor& hidden, const tf::Tensor& labels,
                              const tf::Tensor& candidates, int64_t width) {
  if (hidden.dims() != 2 || hidden.dim_size(1) != width) {
    return InvalidArgument("hidden must be [N, D] with the D of kernel, ", width, "; got shape ",
                           hidden.shape().DebugString());
  }
  const int64_t batch = hidden.dim_size(0);
  if (labels.dims() != 2 || labels.dim_size(0) != batch) {
    return InvalidArgument("labels must be [N, K] with the N of hidden, ", batch, "; got shape ",
                           labels.shape().DebugString());
  }
  if (candidates.dims() != 1 && (candidates.dims() != 2 || candidates.dim_size(0) != batch)) {
    return InvalidArgument("candidates must be [S], or [N, S] with the N of hidden, ", batch,
                           "; got shape ", candidates.shape().DebugString());
  }
  if (AreFew(labels, candidates)) return absl::OkStatus();
  return InvalidArgument("labels and candidates of all examples must be fewer than 2^31; got ",
                         "shapes ", labels.shape().DebugString(), " and ",
                         candidates.shape().DebugString());
}

core::CandidateBatch CandidateInputs::Batch() const {
  return {hidden.flat<float>().data(),
          labels.flat<int64_t>().data(),
          candidates.flat<int64_t>().data(),
          candidates.dims() == 2,
          hidden.dim_size(0),
          labels.dim_size(1),
          OfLogits().dim_size(1)};
}

absl::Status CandidateInputs::GetGradients(tf::OpKernelContext* context,
                                           core::CandidateGradients* of_logits) const {
  const tf::Tensor& of_labels = context->input(gradients);
  const tf::Tensor& of_candidates = context->input(gradients + 1);
  if (of_labels.shape() != labels.shape()) {
    return InvalidArgument("true_gradient must be [N, K] as the labels, ",
                           labels.shape().DebugString(), "; got shape ",
                           of_labels.shape().DebugString());
  }
  if (of_candidates.shape() != OfLogits()) {
    return InvalidArgument("candidate_gradient must be [N, S] with the N of hidden and the S of ",
                           "candidates, ", OfLogits().DebugString(), "; got shape ",
                           of_candidates.shape().DebugString());
  }
  *of_logits = {of_labels.flat<float>().data(), of_candidates.flat<float>().data()};
  return absl::OkStatus();
}

absl::Status CandidateInputs::AllocateLogits(tf::OpKernelContext* context,
                                             core::CandidateLogitsOutputs* outputs) const {
  tf::Tensor *true_logits, *logits, *hits;
  TF_RETURN_IF_ERROR(context->allocate_output(0, labels.shape(), &true_logits));
  TF_RETURN_IF_ERROR(context->allocate_output(1, OfLogits(), &logits));
  TF_RETURN_IF_ERROR(context->allocate_output(2, OfLogits(), &hits));
  *outputs = {true_logits->flat<float>().data(), logits->flat<float>().data(),
              hits->flat<bool>().data()};
  return absl::OkStatus();
}

absl::Status CandidateInputs::AllocateGradient(tf::OpKernelContext* context, bool wanted,
                                               float** hidden_gradient) const {
  tf::Tensor* output;
  const tf::TensorShape none = {0, hidden.dim_size(1)};
  TF_RETURN_IF_ERROR(context->allocate_output(0, wanted ? hidden.shape() : none, &output));
  *hidden_gradient = wanted ? output->flat<float>().data() : nullptr;
  return absl::OkStatus();
}

}  // namespace tfx
