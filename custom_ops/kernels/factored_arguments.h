// SPDX-License-Identifier: Apache-2.0
//
// The arguments and results of ops on a factored layer as core takes them, on every device.

#ifndef TFX_LARGEOUT_KERNELS_FACTORED_ARGUMENTS_H_
#define TFX_LARGEOUT_KERNELS_FACTORED_ARGUMENTS_H_

#include <cstdint>

#include "core/factored_state.h"
#include "core/factored_statistics.h"
#include "core/factored_update.h"
#include "kernels/factored_checks.h"
#include "kernels/locked_variables.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tfx {

// The variables as core takes them.
// REQUIRES: CheckFactoredShapes found nothing.
template <typename T>
core::FactoredState<T> FactoredStateOf(const LockedVariables& variables) {
  const auto at = [&](int index) { return variables.tensor(index)->template flat<T>().data(); };
  core::FactoredState<T> state;
  state.v = at(kV);
  state.u = at(kU);
  state.u_inverse_transpose = at(kUInverseTranspose);
  state.gram = at(kGram);
  state.shift = at(kShift);
  state.row_sum = at(kRowSum);
  state.transitions = at(kTransitions);
  state.row_slot = variables.tensor(kRowSlot)->template flat<uint8_t>().data();
  state.slot_rows = variables.tensor(kSlotRows)->template flat<int64_t>().data();
  state.current_slot = variables.tensor(kCurrentSlot)->template flat<int64_t>().data();
  state.num_classes = variables.tensor(kV)->dim_size(0);
  state.width = variables.tensor(kV)->dim_size(1);
  state.num_slots = variables.tensor(kSlotRows)->dim_size(0);
  return state;
}

template <typename T>
core::FactoredBatch<T> BatchOf(const tensorflow::Tensor& hidden, const tensorflow::Tensor& labels) {
  return {hidden.flat<T>().data(), labels.flat<int64_t>().data(), hidden.dim_size(0),
          labels.dim_size(1)};
}

// The gradients of an update.
template <typename T>
core::FactoredGradients<T> FactoredGradientsOf(tensorflow::OpKernelContext* context) {
  const auto at = [&](int index) { return context->input(kFirstInput + index).flat<T>().data(); };
  return {at(2), at(3), at(4), at(5), at(6)};
}

template <typename T>
absl::Status AllocateFactoredStatistics(tensorflow::OpKernelContext* context,
                                        const tensorflow::Tensor& hidden,
                                        const tensorflow::Tensor& labels,
                                        core::FactoredStatisticsOutputs<T>* outputs) {
  const tensorflow::TensorShape by_example({hidden.dim_size(0)});
  tensorflow::Tensor *targets, *squares, *sum, *gram_hidden, *u_hidden;
  TF_RETURN_IF_ERROR(context->allocate_output(0, labels.shape(), &targets));
  TF_RETURN_IF_ERROR(context->allocate_output(1, by_example, &squares));
  TF_RETURN_IF_ERROR(context->allocate_output(2, by_example, &sum));
  TF_RETURN_IF_ERROR(context->allocate_output(3, hidden.shape(), &gram_hidden));
  TF_RETURN_IF_ERROR(context->allocate_output(4, hidden.shape(), &u_hidden));
  *outputs = {targets->flat<T>().data(), squares->flat<T>().data(), sum->flat<T>().data(),
              gram_hidden->flat<T>().data(), u_hidden->flat<T>().data()};
  return absl::OkStatus();
}

}  // namespace tfx

#endif  // TFX_LARGEOUT_KERNELS_FACTORED_ARGUMENTS_H_
