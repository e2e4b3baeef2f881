// SPDX-License-Identifier: Apache-2.0

#include "kernels/candidate_checks.h"

#include <algorithm>
#include <limits>

#include "kernels/invalid_argument.h"

namespace tfx {
namespace {

namespace tf = tensorflow;

// Whether N (K + S) is below 2^31, and so are N and K + S.
bool AreFew(const tf::Tensor& labels, const tf::Tensor& candidates) {
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  const int64_t batch = labels.dim_size(0), num_labels = labels.dim_size(1);
  const int64_t num_candidates = candidates.dim_size(candidates.dims() - 1);
  return batch <= kMost && num_labels <= kMost && num_candidates <= kMost - num_labels &&
         batch <= kMost / std::max<int64_t>(num_labels + num_candidates, 1);
}

}  // namespace

absl::Status CheckLayerShapes(const tf::Tensor& kernel, const tf::Tensor* bias,
                              tf::DataType dtype) {
  if (kernel.dtype() != dtype || kernel.dims() != 2 || kernel.dim_size(0) < 1 ||
      kernel.dim_size(0) > std::numeric_limits<int32_t>::max()) {
    return InvalidArgument("kernel must be ", tf::DataTypeString(dtype),
                           " [C, D] with C at least 1 and below 2^31; got ",
                           tf::DataTypeString(kernel.dtype()), " of shape ",
                           kernel.shape().DebugString());
  }
  if (bias == nullptr) return absl::OkStatus();
  if (bias->dtype() != dtype || bias->dims() != 1 || bias->dim_size(0) != kernel.dim_size(0)) {
    return InvalidArgument("bias must be ", tf::DataTypeString(dtype),
                           " [C] with the C of kernel, ", kernel.dim_size(0), "; got ",
                           tf::DataTypeString(bias->dtype()), " of shape ",
                           bias->shape().DebugString());
  }
  return absl::OkStatus();
}

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

absl::Status CheckGradientShapes(const tf::Tensor& true_gradient,
                                 const tf::Tensor& candidate_gradient,
                                 const tf::TensorShape& labels, const tf::TensorShape& logits) {
  if (true_gradient.shape() != labels) {
    return InvalidArgument("true_gradient must be [N, K] as the labels, ", labels.DebugString(),
                           "; got shape ", true_gradient.shape().DebugString());
  }
  if (candidate_gradient.shape() == logits) return absl::OkStatus();
  return InvalidArgument("candidate_gradient must be [N, S] with the N of hidden and the S of ",
                         "candidates, ", logits.DebugString(), "; got shape ",
                         candidate_gradient.shape().DebugString());
}

}  // namespace tfx
