// SPDX-License-Identifier: Apache-2.0

#include "kernels/factored_op.h"

#include <cmath>
#include <limits>

#include "kernels/invalid_argument.h"

namespace tfx {

namespace tf = tensorflow;

absl::Status LockFactored(tf::OpKernelContext* context, tf::DataType dtype, bool changes,
                          LockedVariables* variables) {
  TF_RETURN_IF_ERROR(variables->Lock(
      context,
      {"v", "u", "u_inverse_transpose", "gram", "shift", "row_sum", "transitions", "row_slot",
       "slot_rows", "current_slot"},
      changes ? LockedVariables::Mode::kExclusive : LockedVariables::Mode::kShared));
  const auto at = [&](int index) -> const tf::Tensor& { return *variables->tensor(index); };
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
      return InvalidArgument(variables->name(i), " must be ", tf::DataTypeString(wanted),
                             " of shape ", shapes[i].DebugString(), "; got ",
                             tf::DataTypeString(at(i).dtype()), " of shape ",
                             at(i).shape().DebugString());
    }
  }
  return absl::OkStatus();
}

absl::Status OwnFactoredRows(LockedVariables* variables) {
  for (int index : {kV, kRowSlot, kSlotRows}) TF_RETURN_IF_ERROR(variables->Own(index));
  return absl::OkStatus();
}

absl::Status CheckFactoredBatch(tf::OpKernelContext* context, int64_t width) {
  const tf::Tensor& hidden = context->input(kFirstInput);
  const tf::Tensor& labels = context->input(kFirstInput + 1);
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

absl::Status CheckFactoredGradients(tf::OpKernelContext* context) {
  constexpr int first = kFirstInput;
  const tf::TensorShape& hidden = context->input(first).shape();
  const tf::TensorShape& labels = context->input(first + 1).shape();
  const tf::TensorShape by_example({hidden.dim_size(0)});
  const tf::TensorShape* shapes[] = {&hidden, &hidden, &labels, &by_example, &by_example};
  for (int i = 0; i < 5; ++i) {
    const tf::Tensor& gradient = context->input(first + 2 + i);
    if (gradient.shape() == *shapes[i]) continue;
    return InvalidArgument(kFactoredGradients[i], " must have shape ", shapes[i]->DebugString(),
                           "; got ", gradient.shape().DebugString());
  }
  const tf::Tensor& learning_rate = context->input(kLearningRateInput);
  const tf::Tensor& weight_decay = context->input(kWeightDecayInput);
  if (learning_rate.dims() == 0 && weight_decay.dims() == 0) return absl::OkStatus();
  return InvalidArgument("learning_rate and weight_decay must be scalars; got shapes ",
                         learning_rate.shape().DebugString(), " and ",
                         weight_decay.shape().DebugString());
}

absl::Status FactoredUpdateAttributes::Read(tf::OpKernelConstruction* context) {
  TF_RETURN_IF_ERROR(context->GetAttr("update", &update));
  TF_RETURN_IF_ERROR(context->GetAttr("max_condition", &max_condition));
  if (!std::isnan(max_condition)) return absl::OkStatus();
  return InvalidArgument("max_condition must be a number; got ", max_condition);
}

absl::Status CurrentSlotError(int64_t num_slots, int64_t slot) {
  return InvalidArgument("current_slot must be in [0, ", num_slots, "), for 2 to 256 slots; got ",
                         slot);
}

absl::Status SlotRowsError(int64_t num_classes, int64_t slot, int64_t rows) {
  return InvalidArgument("slot_rows must be in [0, C] = [0, ", num_classes, "]; got ", rows,
                         " at position [", slot, "]");
}

absl::Status SumOfSlotRowsError(int64_t num_classes, int64_t sum) {
  return InvalidArgument("slot_rows must have the sum C = ", num_classes, "; got ", sum);
}

absl::Status RowSlotError(int64_t num_slots, int64_t row, int slot) {
  return InvalidArgument("row_slot must be in [0, ", num_slots, "); got ", slot, " at position [",
                         row, "]");
}

absl::Status EmptySlotError(int64_t row, int slot) {
  return InvalidArgument("slot_rows must be how many rows are in each slot; got 0 at position [",
                         slot, "], where row_slot has class ", row);
}

absl::Status LearningRateError(double learning_rate) {
  return InvalidArgument("learning_rate must be at least 0 and finite; got ", learning_rate);
}

absl::Status WeightDecayError(double learning_rate, double weight_decay) {
  return InvalidArgument(
      "weight_decay must be at least 0 and below 1 / learning_rate; got weight_decay ",
      weight_decay, " with learning_rate ", learning_rate);
}

absl::Status DivergenceError(double learning_rate, double weight_decay, double lambda_max) {
  return InvalidArgument("learning_rate must keep 2 learning_rate lambda_max(H^T diag(g_q) H) at ",
                         "most 2 - learning_rate weight_decay, or the step diverges in the naive ",
                         "layer too; got learning_rate ", learning_rate, ", weight_decay ",
                         weight_decay, " and lambda_max ", lambda_max);
}

}  // namespace tfx
