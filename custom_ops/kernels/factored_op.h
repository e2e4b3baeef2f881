// SPDX-License-Identifier: Apache-2.0
//
// The ops on a factored layer on every device: checks of the shapes and types of their arguments,
// and arguments and results in the form for core. Values in tensors are not read.

#ifndef TFX_LARGEOUT_KERNELS_FACTORED_OP_H_
#define TFX_LARGEOUT_KERNELS_FACTORED_OP_H_

#include <cstdint>

#include "core/factored_state.h"
#include "core/factored_statistics.h"
#include "core/factored_update.h"
#include "kernels/locked_variables.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tfx {

// The variables of a factored layer, in the order of core::FactoredState.
enum FactoredVariable {
  kV,
  kU,
  kUInverseTranspose,
  kGram,
  kShift,
  kRowSum,
  kTransitions,
  kRowSlot,
  kSlotRows,
  kCurrentSlot,
  kNumFactoredVariables
};

constexpr int kFirstInput = kNumFactoredVariables;  // of an op, after the variables

// Looks up the variables and locks them, exclusively if the op changes them. Returns an error if
// they don't fit together, or have another type than dtype.
absl::Status LockFactored(tensorflow::OpKernelContext* context, tensorflow::DataType dtype,
                          bool changes, LockedVariables* variables);

// Gives the variables with the slots of rows separate buffers.
absl::Status OwnFactoredRows(LockedVariables* variables);

// Returns an error if hidden and labels, the first inputs, don't fit together, or don't fit the
// width of a layer.
absl::Status CheckFactoredBatch(tensorflow::OpKernelContext* context, int64_t width);

// The inputs of an update between the labels and the rates, in their order.
constexpr const char* kFactoredGradients[] = {"gram_hidden", "u_hidden", "g_target", "g_squares",
                                              "g_sum"};
constexpr int kLearningRateInput = kFirstInput + 7, kWeightDecayInput = kFirstInput + 8;

// Returns an error if the shapes of gradients and rates don't fit. The inputs of an update are
// hidden, labels, kFactoredGradients and two rates.
absl::Status CheckFactoredGradients(tensorflow::OpKernelContext* context);

// The attributes of an update.
struct FactoredUpdateAttributes {
  absl::Status Read(tensorflow::OpKernelConstruction* context);

  bool update;
  float max_condition;
};

// Errors after the check of values, on any device.
absl::Status CurrentSlotError(int64_t num_slots, int64_t slot);
absl::Status SlotRowsError(int64_t num_classes, int64_t slot, int64_t rows);
absl::Status SumOfSlotRowsError(int64_t num_classes, int64_t sum);
absl::Status RowSlotError(int64_t num_slots, int64_t row, int slot);
absl::Status EmptySlotError(int64_t row, int slot);
absl::Status LearningRateError(double learning_rate);
absl::Status WeightDecayError(double learning_rate, double weight_decay);
absl::Status DivergenceError(double learning_rate, double weight_decay, double lambda_max);

// The variables in the form for core.
// REQUIRES: LockFactored succeeded. They are valid until a variable gets another buffer.
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
core::FactoredBatch<T> FactoredBatchOf(tensorflow::OpKernelContext* context) {
  const tensorflow::Tensor& hidden = context->input(kFirstInput);
  const tensorflow::Tensor& labels = context->input(kFirstInput + 1);
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
                                        core::FactoredStatisticsOutputs<T>* outputs) {
  const tensorflow::Tensor& hidden = context->input(kFirstInput);
  const tensorflow::Tensor& labels = context->input(kFirstInput + 1);
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

#endif  // TFX_LARGEOUT_KERNELS_FACTORED_OP_H_
