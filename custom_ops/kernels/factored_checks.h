// SPDX-License-Identifier: Apache-2.0
//
// What ops on a factored layer demand of the shapes and types of their arguments. Nothing here
// looks at a number in a tensor, so that the arguments may be on any device.

#ifndef TFX_LARGEOUT_KERNELS_FACTORED_CHECKS_H_
#define TFX_LARGEOUT_KERNELS_FACTORED_CHECKS_H_

#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

#include "kernels/locked_variables.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"

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

std::vector<std::string> NamesOfFactoredVariables();

// Refuses variables that don't fit each other, or have another type than dtype.
absl::Status CheckFactoredShapes(const LockedVariables& variables, tensorflow::DataType dtype);

// Refuses hidden and labels that don't fit each other, or a layer of a width.
absl::Status CheckFactoredBatch(const tensorflow::Tensor& hidden, const tensorflow::Tensor& labels,
                                int64_t width);

// The inputs of an update between the labels and the rates, in their order.
constexpr const char* kFactoredGradients[] = {"gram_hidden", "u_hidden", "g_target", "g_squares",
                                              "g_sum"};

// Refuses inputs of an update, which are hidden, labels, kFactoredGradients and two rates, where
// the shapes of gradients and rates don't fit.
absl::Status CheckFactoredGradients(tensorflow::OpKernelContext* context);

absl::Status CheckShape(const char* name, const tensorflow::Tensor& tensor,
                        const tensorflow::TensorShape& shape);

// What is refused once numbers have been looked at, wherever they are.
absl::Status CurrentSlotError(int64_t num_slots, int64_t slot);
absl::Status SlotRowsError(int64_t num_classes, int64_t slot, int64_t rows);
absl::Status SumOfSlotRowsError(int64_t num_classes, int64_t sum);
absl::Status RowSlotError(int64_t num_slots, int64_t row, int slot);
absl::Status EmptySlotError(int64_t row, int slot);
absl::Status LearningRateError(double learning_rate);
absl::Status WeightDecayError(double learning_rate, double weight_decay);
absl::Status DivergenceError(double learning_rate, double weight_decay, double lambda_max);

}  // namespace tfx

#endif  // TFX_LARGEOUT_KERNELS_FACTORED_CHECKS_H_
