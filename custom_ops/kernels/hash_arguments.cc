// SPDX-License-Identifier: Apache-2.0

#include "kernels/hash_arguments.h"

#include <cmath>
#include <limits>

#include "kernels/invalid_argument.h"

namespace tfx {
namespace tf = tensorflow;

absl::Status ElementError(const core::HashFamily& family, int64_t place, int32_t got) {
  return InvalidArgument("elements must be in [0, ", family.width, "); got ", got, " at position [",
                         place / family.window, ", ", place % family.window, "]");
}

absl::Status CheckElements(const core::HashFamily& family) {
  if (family.elements == nullptr) return absl::OkStatus();
  for (int64_t i = 0; i < family.num_hashes * family.window; ++i) {
    const int32_t element = family.elements[i];
    if (element < 0 || element >= family.width) return ElementError(family, i, element);
  }
  return absl::OkStatus();
}

absl::Status VectorError(int64_t row) {
  return InvalidArgument("vectors must be finite; got an infinite or NaN number in row ", row);
}

absl::Status CheckVectors(const tf::Tensor& vectors) {
  if (vectors.dims() == 2 && vectors.dim_size(0) <= std::numeric_limits<int32_t>::max()) {
    return absl::OkStatus();
  }
  return InvalidArgument("vectors must be [n, D] with n below 2^31; got shape ",
                         vectors.shape().DebugString());
}

HashFunctions::HashFunctions(tf::OpKernelConstruction* context) {
  OP_REQUIRES_OK(context, context->GetAttr("num_tables", &num_tables_));
  OP_REQUIRES_OK(context, context->GetAttr("hashes_per_table", &hashes_per_table_));
  OP_REQUIRES_OK(context, context->GetAttr("bins", &bins_));
}

absl::Status HashFunctions::CheckShapes(const tf::Tensor& elements, const tf::Tensor& planes,
                                        int64_t width) const {
  const bool by_winner = elements.NumElements() > 0;
  if (elements.dims() != 2 || planes.dims() != 2 || by_winner == (planes.NumElements() > 0)) {
    return InvalidArgument("one of elements and planes must be a matrix, the other one empty; got ",
                           "shapes ", elements.shape().DebugString(), " and ",
                           planes.shape().DebugString());
  }
  const tf::Tensor& given = by_winner ? elements : planes;
  const int64_t num_hashes = given.dim_size(0);
  const double needed = static_cast<double>(hashes_per_table_) * num_tables_;  // can't overflow
  if (num_hashes < needed || num_hashes % bins_ != 0) {
    return InvalidArgument("there must be hashes_per_table * num_tables = ", needed,
                           " hashes, up to whole ", bins_, " bins; got ", num_hashes);
  }
  if (!by_winner && (planes.dim_size(1) != width || bins_ != 1)) {
    return InvalidArgument("planes must be [H, D] with D = ", width, ", without bins; got shape ",
                           planes.shape().DebugString(), " and ", bins_, " bins");
  }
  if (by_winner && elements.dim_size(1) < 2) {
    return InvalidArgument("elements must be [H, window] with a window of at least 2; got shape ",
                           elements.shape().DebugString());
  }
  return absl::OkStatus();
}

absl::Status HashFunctions::Get(const tf::Tensor& elements, const tf::Tensor& planes, int64_t width,
                                core::HashFamily* family) const {
  TF_RETURN_IF_ERROR(CheckShapes(elements, planes, width));
  const bool by_winner = elements.NumElements() > 0;
  const double base = by_winner ? elements.dim_size(1) : 2;
  if (std::pow(base, hashes_per_table_) > kMostBuckets) {
    return InvalidArgument("a table must have at most 2^24 buckets; got ", base, "^",
                           hashes_per_table_);
  }
  const tf::Tensor& given = by_winner ? elements : planes;
  *family = {by_winner ? elements.flat<int32_t>().data() : nullptr,
             by_winner ? nullptr : planes.flat<float>().data(),
             given.dim_size(0),
             given.dim_size(1),
             bins_,
             width,
             hashes_per_table_,
             num_tables_,
             nullptr,
             0};
  return absl::OkStatus();
}

absl::Status GetTables(const LockedVariables& variables, int first, int64_t num_buckets,
                       core::HashTables* tables) {
  const tf::Tensor& entries = *variables.tensor(first);
  const tf::Tensor& starts = *variables.tensor(first + 1);
  if (entries.dtype() != tf::DT_UINT32 || entries.dims() != 2 || entries.NumElements() == 0 ||
      entries.dim_size(1) > std::numeric_limits<int32_t>::max()) {
    return InvalidArgument("entries must be uint32 [L, C] with L and C at least 1; got ",
                           tf::DataTypeString(entries.dtype()), " of shape ",
                           entries.shape().DebugString());
  }
  if (starts.dtype() != tf::DT_UINT32 || starts.dims() != 2 ||
      starts.dim_size(0) != entries.dim_size(0) || starts.dim_size(1) < 2 ||
      (num_buckets > 0 && starts.dim_size(1) != num_buckets + 1)) {
    return InvalidArgument("starts must be uint32 [L, buckets + 1] with the L of entries, ",
                           entries.dim_size(0), "; got ", tf::DataTypeString(starts.dtype()),
                           " of shape ", starts.shape().DebugString());
  }
  *tables = {static_cast<int32_t*>(entries.data()), static_cast<int32_t*>(starts.data()),
             entries.dim_size(0), entries.dim_size(1), starts.dim_size(1) - 1};
  return absl::OkStatus();
}

absl::Status CheckScalar(const char* name, const tf::Tensor& value) {
  if (value.dims() == 0) return absl::OkStatus();
  return InvalidArgument(name, " must be a scalar; got shape ", value.shape().DebugString());
}

}  // namespace tfx
