// SPDX-License-Identifier: Apache-2.0

#include "kernels/check_ids.h"

#include <cmath>
#include <string>

#include "kernels/invalid_argument.h"

namespace tfx {
namespace {

namespace tf = tensorflow;

absl::Status CheckRange(const char* name, const std::string& range, const tf::Tensor& ids,
                        int64_t lowest, int64_t end, const core::RowKernels& kernels) {
  const int64_t* flat = ids.flat<int64_t>().data();
  const int64_t at = kernels.find_outside(flat, ids.NumElements(), lowest, end);
  if (at == ids.NumElements()) return absl::OkStatus();
  return IdError(name, range, ids.shape(), at, flat[at]);
}

}  // namespace

absl::Status IdError(const char* name, const std::string& range, const tf::TensorShape& shape,
                     int64_t at, int64_t id) {
  const int64_t columns = shape.dims() == 2 ? shape.dim_size(1) : shape.num_elements();
  const std::string row = shape.dims() == 2 ? absl::StrCat(at / columns, ", ") : "";
  return InvalidArgument(name, " must be class ids in ", range, "; got ", id, " at position [", row,
                         at % columns, "]");
}

absl::Status CheckIds(const char* name, const tf::Tensor& ids, int64_t lowest, int64_t end,
                      const core::RowKernels& kernels) {
  return CheckRange(name, absl::StrCat("[", lowest, ", ", end, ")"), ids, lowest, end, kernels);
}

absl::Status CheckLabels(const tf::Tensor& labels, int64_t num_classes,
                         const core::RowKernels& kernels) {
  return CheckRange("labels", absl::StrCat("[-1, num_classes), where num_classes is ", num_classes),
                    labels, -1, num_classes, kernels);
}

absl::Status CheckGradient(const char* name, const tf::Tensor& gradient, const tf::Tensor& ids,
                           const core::Execution& execution) {
  const float* g = gradient.flat<float>().data();
  const int64_t n = gradient.NumElements();
  if (execution.dense.all_finite(g, n)) return absl::OkStatus();
  const auto flat_ids = ids.flat<int64_t>();
  for (int64_t at = 0; at < n; ++at) {
    if (std::isfinite(g[at]) || flat_ids(at % ids.NumElements()) < 0) continue;
    const int64_t columns = gradient.dim_size(1);
    return InvalidArgument(name, " must be finite; got ", g[at], " at position [", at / columns,
                           ", ", at % columns, "]");
  }
  return absl::OkStatus();
}

}  // namespace tfx
