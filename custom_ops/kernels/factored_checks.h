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

std::vector<std::string> NamesOfFactoredVariables();

// Refuses variables that don't fit each other, or have another type than dtype.
absl::Status CheckFactoredShapes(const LockedVariables& variables, tensorflow::DataType dtype);

// Refuses hidden and labels that don't fit each other, or a layer of a width.
absl::Status CheckFactoredBatch(const tensorflow::Tensor& hidden, const tensorflow::Tensor& labels,
                                int64_t width);

absl::Status CheckShape(const char* name, const tensorflow::Tensor& tensor,
                        const tensorflow::TensorShape& shape);

}  // namespace tfx

#endif  // TFX_LARGEOUT_KERNELS_FACTORED_CHECKS_H_
