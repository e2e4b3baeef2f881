// SPDX-License-Identifier: Apache-2.0

#include "kernels/factored_checks.h"

#include <limits>

#include "kernels/invalid_argument.h"

namespace tfx {

namespace tf = tensorflow;

std::vector<std::string> NamesOfFactoredVariables() {
  return {"v",           "u",        "u_inverse_transpose", "gram",        "shift", "row_sum",
          "transitions", "row_slot", "slot_rows",           "current_slot"};
}

absl::Status CheckFactoredShapes(const LockedVariables& variables, tf::DataType dtype) {
  const auto at = [&](int index) -> const tf::Tensor& { return *variables.tensor(index); };
  if (at(kV).dims() != 2 || at(kV).NumElements() == 0) {
    return InvalidArgument("v must be a matrix [C, D] with C and D at least 1; got shape ",
                           at(kV).shape().DebugString());
  }
  if (at(kSlotRows).dims() != 1) {
    return InvalidArgument("slot_rows must be a vector; got shape ",
                           at(kSlotRows).shape().DebugString());
  }
  const int64_t classes = at(kV).dim_size(0), width = at(kV).dim_size(1);
  const int64_t slots = at(kSlotRows).dim_size(0);
  const tf::TensorShape square({width, width}), vector({width});
  const tf::TensorShape shapes[] = {
      {classes, width},      square,    square,  square, vector, vector,
      {slots, width, width}, {classes}, {slots}, {}};
  for (int i = 0; i < kNumFactoredVariables; ++i) {
    const bool is_count = i == kSlotRows || i == kCurrentSlot;
    const tf::DataType wanted = i == kRowSlot ? tf::DT_UINT8 : is_count ? tf::DT_INT64 : dtype;
    if (at(i).dtype() != wanted || at(i).shape() != shapes[i]) {
      return InvalidArgument(variables.name(i), " must be ", tf::DataTypeString(wanted),
                             " of shape ", shapes[i].DebugString(), "; got ",
                             tf::DataTypeString(at(i).dtype()), " of shape ",
                             at(i).shape().DebugString());
    }
  }
  return absl::OkStatus();
}

absl::Status CheckFactoredBatch(const tf::Tensor& hidden, const tf::Tensor& labels, int64_t width) {
  if (hidden.dims() != 2 || hidden.dim_size(1) != width) {
    return InvalidArgument("hidden must be [B, D] with the D of v, ", width, "; got shape ",
                           hidden.shape().DebugString());
  }
  if (labels.dims() == 2 && labels.dim_size(0) == hidden.dim_size(0) &&
      labels.dim_size(1) <= std::numeric_limits<int32_t>::max()) {
    return absl::OkStatus();
  }
  return InvalidArgument("labels must be [B, K] with the B of hidden, ", hidden.dim_size(0),
                         ", and K below 2^31; got shape ", labels.shape().DebugString());
}

absl::Status CheckShape(const char* name, const tf::Tensor& tensor, const tf::TensorShape& shape) {
  if (tensor.shape() == shape) return absl::OkStatus();
  return InvalidArgument(name, " must have shape ", shape.DebugString(), "; got ",
                         tensor.shape().DebugString());
}

}  // namespace tfx
