// SPDX-License-Identifier: Apache-2.0
//
// Common arguments of ops on hash tables.

#ifndef TFX_LARGEOUT_KERNELS_HASH_ARGUMENTS_H_
#define TFX_LARGEOUT_KERNELS_HASH_ARGUMENTS_H_

#include <cstdint>

#include "core/hash_family.h"
#include "core/hash_tables.h"
#include "kernels/locked_variables.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tfx {

constexpr int64_t kMostBuckets = int64_t{1} << 24;
constexpr const char* kRebuild = "; rebuild the index";

// The attributes and inputs for a hash family.
class HashFunctions {
 public:
  explicit HashFunctions(tensorflow::OpKernelConstruction* context);

  // Sets *family to hash functions of vectors of a width, without radii. Checks only shapes.
  absl::Status Get(const tensorflow::Tensor& elements, const tensorflow::Tensor& planes,
                   int64_t width, core::HashFamily* family) const;

 private:
  // Checks only shapes.
  absl::Status CheckShapes(const tensorflow::Tensor& elements, const tensorflow::Tensor& planes,
                           int64_t width) const;

  int64_t num_tables_, hashes_per_table_, bins_;
};

// Checks elements in host memory.
absl::Status CheckElements(const core::HashFamily& family);
absl::Status CheckVectors(const tensorflow::Tensor& vectors);

// The errors.
absl::Status ElementError(const core::HashFamily& family, int64_t place, int32_t got);
absl::Status VectorError(int64_t row);

// Sets *tables to variables `first` and the next, entries and starts. Returns an error if they are
// not tables with `num_buckets` buckets (0: any number). Checks only shapes and types. Their
// numbers are int32 in uint32 variables, as TensorFlow has no int32 variables on GPUs.
absl::Status GetTables(const LockedVariables& variables, int first, int64_t num_buckets,
                       core::HashTables* tables);

absl::Status CheckScalar(const char* name, const tensorflow::Tensor& value);

}  // namespace tfx

#endif  // TFX_LARGEOUT_KERNELS_HASH_ARGUMENTS_H_
