// SPDX-License-Identifier: Apache-2.0
//
// The op that updates hash tables, on all devices: its attributes, shapes and errors.

#ifndef TFX_LARGEOUT_KERNELS_HASH_INDEX_OP_H_
#define TFX_LARGEOUT_KERNELS_HASH_INDEX_OP_H_

#include <cstdint>
#include <string>
#include <vector>

#include "core/hash_family.h"
#include "core/hash_tables.h"
#include "kernels/hash_arguments.h"
#include "kernels/layer.h"
#include "kernels/locked_variables.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tfx {

class HashIndexCall {
 public:
  // Variables: four of the index, then W and perhaps b.
  static constexpr int kEntries = 0, kStarts = 1, kTouchedAt = 2, kBuiltAt = 3, kKernel = 4;

  struct Arguments {
    core::HashFamily family;
    core::HashTables tables;
    int32_t now;
    int64_t begin, end;  // tables
  };

  explicit HashIndexCall(tensorflow::OpKernelConstruction* context);

  std::vector<std::string> Names() const;

  // Checks shapes and types, and only the values of `now` and `tables`.
  absl::Status Get(tensorflow::OpKernelContext* context, const LockedVariables& variables,
                   Arguments* arguments) const;

  const tensorflow::Tensor& Touched(tensorflow::OpKernelContext* context) const {
    return context->input(first_input_ + 2);
  }
  core::LayerWeights Weights(const LockedVariables& variables) const {
    return layer_.Weights(variables, kKernel);
  }
  static core::RowTimes Times(const LockedVariables& variables);
  static int32_t* TouchedAt(const LockedVariables& variables);

  // The errors.
  static absl::Status RadiusError(int64_t place, float got);
  static absl::Status RowError(int64_t row);
  static absl::Status TableError(int64_t table);

 private:
  const HashFunctions functions_;
  Layer layer_;
  int first_input_;
};

}  // namespace tfx

#endif  // TFX_LARGEOUT_KERNELS_HASH_INDEX_OP_H_
