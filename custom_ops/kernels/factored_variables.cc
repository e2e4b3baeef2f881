// SPDX-License-Identifier: Apache-2.0

#include "kernels/factored_variables.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <vector>

#include "kernels/invalid_argument.h"

namespace tfx {
namespace {

namespace tf = tensorflow;

enum Index { kV, kU, kP, kQ, kW, kC, kTransitions, kRowSlot, kSlotRows, kCurrentSlot };

constexpr const char* kNames[kNumFactoredVariables] = {
    "v",           "u",        "u_inverse_transpose", "gram",        "shift", "row_sum",
    "transitions", "row_slot", "slot_rows",           "current_slot"};

}  // namespace

template <typename T>
absl::Status FactoredVariables<T>::Lock(tf::OpKernelContext* context) {
  TF_RETURN_IF_ERROR(variables_.Lock(context, {std::begin(kNames), std::end(kNames)},
                                     LockedVariables::Mode::kExclusive));
  return CheckState();
}

template <typename T>
absl::Status FactoredVariables<T>::OwnRows() {
  for (int index : {kV, kRowSlot, kSlotRows}) TF_RETURN_IF_ERROR(variables_.Own(index));
  return absl::OkStatus();
}

template <typename T>
absl::Status FactoredVariables<T>::OwnEverything() {
  for (int index = 0; index < kNumFactoredVariables; ++index)
    TF_RETURN_IF_ERROR(variables_.Own(index));
  return absl::OkStatus();
}

template <typename T>
core::FactoredState<T> FactoredVariables<T>::State() const {
  core::FactoredState<T> state;
  state.v = TensorAt(kV)->template flat<T>().data();
  state.u = TensorAt(kU)->template flat<T>().data();
  state.p = TensorAt(kP)->template flat<T>().data();
  state.q = TensorAt(kQ)->template flat<T>().data();
  state.w = TensorAt(kW)->template flat<T>().data();
  state.c = TensorAt(kC)->template flat<T>().data();
  state.transitions = TensorAt(kTransitions)->template flat<T>().data();
  state.row_slot = TensorAt(kRowSlot)->template flat<uint8_t>().data();
  state.slot_rows = TensorAt(kSlotRows)->template flat<int64_t>().data();
  state.current_slot = TensorAt(kCurrentSlot)->template flat<int32_t>().data();
  state.num_classes = TensorAt(kV)->dim_size(0);
  state.width = TensorAt(kV)->dim_size(1);
  state.num_slots = TensorAt(kSlotRows)->dim_size(0);
  return state;
}

template <typename T>
absl::Status FactoredVariables<T>::CheckState() const {
  if (TensorAt(kV)->dims() != 2 || TensorAt(kV)->NumElements() == 0) {
    return InvalidArgument("v must be a matrix [C, D] with C and D at least 1; got shape ",
                           TensorAt(kV)->shape().DebugString());
  }
  if (TensorAt(kSlotRows)->dims() != 1) {
    return InvalidArgument("slot_rows must be a vector; got shape ",
                           TensorAt(kSlotRows)->shape().DebugString());
  }
  const int64_t classes = TensorAt(kV)->dim_size(0), width = TensorAt(kV)->dim_size(1);
  const int64_t slots = TensorAt(kSlotRows)->dim_size(0);
  const tf::TensorShape square({width, width}), vector({width});
  const tf::TensorShape shapes[] = {
      {classes, width},      square,    square,  square, vector, vector,
      {slots, width, width}, {classes}, {slots}, {}};
  for (int i = 0; i < kNumFactoredVariables; ++i) {
    const tf::DataType dtype = i == kRowSlot       ? tf::DT_UINT8
                               : i == kSlotRows    ? tf::DT_INT64
                               : i == kCurrentSlot ? tf::DT_INT32
                                                   : tf::DataTypeToEnum<T>::value;
    if (TensorAt(i)->dtype() != dtype || TensorAt(i)->shape() != shapes[i]) {
      return InvalidArgument(kNames[i], " must be ", tf::DataTypeString(dtype), " of shape ",
                             shapes[i].DebugString(), "; got ",
                             tf::DataTypeString(TensorAt(i)->dtype()), " of shape ",
                             TensorAt(i)->shape().DebugString());
    }
  }
  return CheckSlots();
}

// What can be said without a look at all rows.
template <typename T>
absl::Status FactoredVariables<T>::CheckSlots() const {
  const core::FactoredState<T> state = State();
  if (state.num_slots < 2 || state.num_slots > 256 || *state.current_slot < 0 ||
      *state.current_slot >= state.num_slots) {
    return InvalidArgument("current_slot must be in [0, ", state.num_slots,
                           "), for 2 to 256 slots; got ", *state.current_slot);
  }
  int64_t sum = 0;
  for (int64_t slot = 0; slot < state.num_slots; ++slot) {
    const int64_t rows = state.slot_rows[slot];
    if (rows < 0 || rows > state.num_classes) {
      return InvalidArgument("slot_rows must be in [0, C] = [0, ", state.num_classes, "]; got ",
                             rows, " at position [", slot, "]");
    }
    sum += rows;
  }
  if (sum == state.num_classes) return absl::OkStatus();
  return InvalidArgument("slot_rows must have the sum C = ", state.num_classes, "; got ", sum);
}

template <typename T>
absl::Status FactoredVariables<T>::CheckSlotOfRow(int64_t id) const {
  const core::FactoredState<T> state = State();
  const int slot = state.row_slot[id];
  if (slot >= state.num_slots) {
    return InvalidArgument("row_slot must be in [0, ", state.num_slots, "); got ", slot,
                           " at position [", id, "]");
  }
  if (state.slot_rows[slot] > 0) return absl::OkStatus();
  return InvalidArgument("slot_rows must be how many rows are in each slot; got 0 at position [",
                         slot, "], where row_slot has class ", id);
}

template <typename T>
absl::Status FactoredVariables<T>::CheckAllRows() const {
  const core::FactoredState<T> state = State();
  std::vector<int64_t> rows(256, 0);
  for (int64_t id = 0; id < state.num_classes; ++id) ++rows[state.row_slot[id]];
  for (int64_t slot = state.num_slots; slot < 256; ++slot) {
    if (rows[slot] == 0) continue;
    return CheckSlotOfRow(std::find(state.row_slot, state.row_slot + state.num_classes, slot) -
                          state.row_slot);
  }
  for (int64_t slot = 0; slot < state.num_slots; ++slot) {
    if (rows[slot] == state.slot_rows[slot]) continue;
    return InvalidArgument("slot_rows must be how many rows are in each slot; got ",
                           state.slot_rows[slot], " at position [", slot, "], where row_slot has ",
                           rows[slot]);
  }
  return absl::OkStatus();
}

template <typename T>
absl::Status FactoredVariables<T>::CheckBatch(const tf::Tensor& hidden, const tf::Tensor& labels,
                                              const core::DenseKernels<T>& kernels) const {
  const int64_t width = TensorAt(kV)->dim_size(1);
  if (hidden.dims() != 2 || hidden.dim_size(1) != width) {
    return InvalidArgument("hidden must be [B, D] with the D of v, ", width, "; got shape ",
                           hidden.shape().DebugString());
  }
  if (labels.dims() != 2 || labels.dim_size(0) != hidden.dim_size(0) ||
      labels.dim_size(1) > std::numeric_limits<int32_t>::max()) {
    return InvalidArgument("labels must be [B, K] with the B of hidden, ", hidden.dim_size(0),
                           ", and K below 2^31; got shape ", labels.shape().DebugString());
  }
  if (!kernels.all_finite(hidden.flat<T>().data(), hidden.NumElements())) {
    return InvalidArgument("hidden must be finite; got an infinite or NaN number");
  }
  return CheckLabels(labels);
}

template <typename T>
absl::Status FactoredVariables<T>::CheckLabels(const tf::Tensor& labels) const {
  const core::FactoredState<T> state = State();
  const auto matrix = labels.matrix<int64_t>();
  for (int64_t b = 0; b < matrix.dimension(0); ++b) {
    for (int64_t k = 0; k < matrix.dimension(1); ++k) {
      const int64_t label = matrix(b, k);
      if (label < -1 || label >= state.num_classes) {
        return InvalidArgument(
            "labels must be class ids in [-1, num_classes), where num_classes is ",
            state.num_classes, "; got ", label, " at position [", b, ", ", k, "]");
      }
      if (label >= 0) TF_RETURN_IF_ERROR(CheckSlotOfRow(label));
    }
  }
  return absl::OkStatus();
}

template class FactoredVariables<float>;
template class FactoredVariables<double>;

}  // namespace tfx
