// SPDX-License-Identifier: Apache-2.0

#include "kernels/factored_variables.h"

#include <algorithm>
#include <vector>

#include "kernels/check_values.h"
#include "kernels/invalid_argument.h"

namespace tfx {

namespace tf = tensorflow;

template <typename T>
absl::Status FactoredVariables<T>::Lock(tf::OpKernelContext* context, LockedVariables::Mode mode) {
  TF_RETURN_IF_ERROR(variables_.Lock(context, NamesOfFactoredVariables(), mode));
  TF_RETURN_IF_ERROR(CheckFactoredShapes(variables_, tf::DataTypeToEnum<T>::value));
  return CheckSlots();
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

// What can be said without a look at all rows.
template <typename T>
absl::Status FactoredVariables<T>::CheckSlots() const {
  const core::FactoredState<T> state = State();
  if (state.num_slots < 2 || state.num_slots > 256 || *state.current_slot < 0 ||
      *state.current_slot >= state.num_slots) {
    return CurrentSlotError(state.num_slots, *state.current_slot);
  }
  int64_t sum = 0;
  for (int64_t slot = 0; slot < state.num_slots; ++slot) {
    const int64_t rows = state.slot_rows[slot];
    if (rows < 0 || rows > state.num_classes) {
      return SlotRowsError(state.num_classes, slot, rows);
    }
    sum += rows;
  }
  if (sum == state.num_classes) return absl::OkStatus();
  return SumOfSlotRowsError(state.num_classes, sum);
}

template <typename T>
absl::Status FactoredVariables<T>::CheckSlotOfRow(const core::FactoredState<T>& state, int64_t id) {
  const int slot = state.row_slot[id];
  if (slot >= state.num_slots) return RowSlotError(state.num_slots, id, slot);
  return state.slot_rows[slot] > 0 ? absl::OkStatus() : EmptySlotError(id, slot);
}

template <typename T>
absl::Status FactoredVariables<T>::CheckAllRows() const {
  const core::FactoredState<T> state = State();
  std::vector<int64_t> rows(256, 0);
  for (int64_t id = 0; id < state.num_classes; ++id) ++rows[state.row_slot[id]];
  for (int64_t slot = state.num_slots; slot < 256; ++slot) {
    if (rows[slot] == 0) continue;
    return CheckSlotOfRow(
        state,
        std::find(state.row_slot, state.row_slot + state.num_classes, slot) - state.row_slot);
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
                                              const core::DenseExecution<T>& execution) const {
  TF_RETURN_IF_ERROR(CheckFactoredBatch(hidden, labels, TensorAt(kV)->dim_size(1)));
  TF_RETURN_IF_ERROR(CheckFinite<T>("hidden", hidden, execution.kernels));
  const core::FactoredState<T> state = State();
  TF_RETURN_IF_ERROR(CheckLabels(labels, state.num_classes, execution.rows));
  const auto ids = labels.flat<int64_t>();
  for (int64_t at = 0; at < ids.size(); ++at) {
    if (ids(at) >= 0) TF_RETURN_IF_ERROR(CheckSlotOfRow(state, ids(at)));
  }
  return absl::OkStatus();
}

template class FactoredVariables<float>;
template class FactoredVariables<double>;

}  // namespace tfx
