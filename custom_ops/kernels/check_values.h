// SPDX-License-Identifier: Apache-2.0

#ifndef TFX_LARGEOUT_KERNELS_CHECK_VALUES_H_
#define TFX_LARGEOUT_KERNELS_CHECK_VALUES_H_

#include <cstdint>
#include <string>

#include "core/dense_kernels_isa.h"
#include "core/execution.h"
#include "core/row_kernels_isa.h"
#include "tensorflow/core/framework/tensor.h"

namespace tfx {

// The error for an id that is out of range, at position `at` of ids [n] or [n, m]; `range` is the
// text of the valid range. Does not read ids, so they may be on any device.
absl::Status IdError(const char* name, const std::string& range,
                     const tensorflow::TensorShape& shape, int64_t at, int64_t id);

// The error for a number that is infinite or NaN, at position `at` of numbers of a shape.
absl::Status FiniteError(const char* name, const tensorflow::TensorShape& shape, int64_t at,
                         double number);

// Returns an error if ids [n] or [n, m] in host memory are not in [lowest, end).
absl::Status CheckIds(const char* name, const tensorflow::Tensor& ids, int64_t lowest, int64_t end,
                      const core::Execution& execution);

// The error for labels that are not in [-1, num_classes), like IdError.
absl::Status LabelRangeError(const tensorflow::TensorShape& shape, int64_t num_classes, int64_t at,
                             int64_t label);

// Returns an error if labels in host memory are not in [-1, num_classes).
absl::Status CheckLabels(const tensorflow::Tensor& labels, int64_t num_classes,
                         const core::RowKernels& kernels);

// Returns an error if a tensor of T has a number that is infinite or NaN.
template <typename T>
absl::Status CheckFinite(const char* name, const tensorflow::Tensor& values,
                         const core::DenseKernels<T>& kernels);

// Likewise for a gradient [N, n]; padding is ignored. The ids are for each row, or shared.
absl::Status CheckGradient(const char* name, const tensorflow::Tensor& gradient,
                           const tensorflow::Tensor& ids, const core::Execution& execution);

}  // namespace tfx

#endif  // TFX_LARGEOUT_KERNELS_CHECK_VALUES_H_
