// SPDX-License-Identifier: Apache-2.0
//
// The variables of a factored layer, locked for one op.

#ifndef TFX_LARGEOUT_KERNELS_FACTORED_VARIABLES_H_
#define TFX_LARGEOUT_KERNELS_FACTORED_VARIABLES_H_

#include <cstdint>

#include "core/dense_execution.h"
#include "core/factored_state.h"
#include "kernels/factored_arguments.h"
#include "kernels/factored_checks.h"
#include "kernels/locked_variables.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tfx {

// Inputs [0, kNumFactoredVariables) of an op, in the order of core::FactoredState.
template <typename T>
class FactoredVariables {
 public:
  // Looks the variables up, locks them until destruction, and checks them against each other.
  absl::Status Lock(tensorflow::OpKernelContext* context, LockedVariables::Mode mode);

  // Gives those variables a buffer of their own that share one with a tensor that was read from
  // them.
  absl::Status OwnRows();  // V, row_slot and slot_rows
  absl::Status OwnEverything();

  // Refuses a row_slot or slot_rows that is wrong anywhere.
  //
  // Cost: O(C). For ops that look at all rows; CheckBatch looks at those of the labels.
  absl::Status CheckAllRows() const;

  // REQUIRES: Lock succeeded. It is valid until a variable gets another buffer.
  core::FactoredState<T> State() const { return FactoredStateOf<T>(variables_); }

  // Refuses hidden and labels that don't fit the state, and numbers that are not finite.
  absl::Status CheckBatch(const tensorflow::Tensor& hidden, const tensorflow::Tensor& labels,
                          const core::DenseExecution<T>& execution) const;

 private:
  tensorflow::Tensor* TensorAt(int index) const { return variables_.tensor(index); }
  absl::Status CheckSlots() const;
  static absl::Status CheckSlotOfRow(const core::FactoredState<T>& state, int64_t id);

  LockedVariables variables_;
};

extern template class FactoredVariables<float>;
extern template class FactoredVariables<double>;

}  // namespace tfx

#endif  // TFX_LARGEOUT_KERNELS_FACTORED_VARIABLES_H_
