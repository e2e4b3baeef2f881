// SPDX-License-Identifier: Apache-2.0

#include "kernels/streamed_logits_checks.h"

#include <limits>

#include "kernels/invalid_argument.h"

namespace tfx {

namespace tf = tensorflow;

absl::Status CheckStreamedLogits(const tf::Tensor& hidden, const tf::Tensor& kernel,
                                 const tf::Tensor& bias, const tf::Tensor& labels,
                                 const tf::Tensor& target_scores, int64_t k) {
  if (hidden.dims() != 2 || kernel.dims() != 2 || bias.dims() != 1 || labels.dims() != 2) {
    return InvalidArgument("hidden, kernel, bias and labels must have rank 2, 2, 1 and 2; got ",
                           hidden.dims(), ", ", kernel.dims(), ", ", bias.dims(), " and ",
                           labels.dims());
  }
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  const int64_t num_classes = kernel.dim_size(0);
  if (hidden.dim_size(0) > kMost || hidden.dim_size(1) > kMost || labels.dim_size(1) > kMost) {
    return InvalidArgument("hidden [B, D] and labels [B, K] must have dimensions below 2^31; got ",
                           "shapes ", hidden.shape().DebugString(), " and ",
                           labels.shape().DebugString());
  }
  if (kernel.dtype() != bias.dtype()) {
    return InvalidArgument("kernel must have the dtype of bias, ", tf::DataTypeString(bias.dtype()),
                           "; got ", tf::DataTypeString(kernel.dtype()));
  }
  if (num_classes > kMost) {
    return InvalidArgument("kernel must have fewer than 2^31 rows; got ", num_classes);
  }
  if (hidden.dim_size(1) != kernel.dim_size(1)) {
    return InvalidArgument("hidden must have as many columns as kernel: ", kernel.dim_size(1),
                           "; got ", hidden.dim_size(1));
  }
  if (bias.dim_size(0) != num_classes && bias.dim_size(0) != 0) {
    return InvalidArgument("bias must have one entry for each row of kernel: ", num_classes,
                           "; got ", bias.dim_size(0));
  }
  if (labels.dim_size(0) != hidden.dim_size(0)) {
    return InvalidArgument("labels must have as many rows as hidden: ", hidden.dim_size(0),
                           "; got ", labels.dim_size(0));
  }
  if (target_scores.shape() != labels.shape() && target_scores.shape() != tf::TensorShape({0, 0})) {
    return InvalidArgument("target_scores must be [B, K] as the labels, ",
                           labels.shape().DebugString(), ", or [0, 0] for none; got shape ",
                           target_scores.shape().DebugString());
  }
  if (k <= num_classes) return absl::OkStatus();
  return InvalidArgument("k must be at most num_classes, which is ", num_classes, "; got ", k);
}

}  // namespace tfx
