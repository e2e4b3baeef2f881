// SPDX-License-Identifier: Apache-2.0
//
// The op on buckets on all devices: its attributes, shapes and errors.

#ifndef TFX_LARGEOUT_KERNELS_BUCKET_CANDIDATES_OP_H_
#define TFX_LARGEOUT_KERNELS_BUCKET_CANDIDATES_OP_H_

#include <cstdint>

#include "core/bucket_candidates.h"
#include "core/hash_tables.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tfx {

class BucketCandidatesCall {
 public:
  static constexpr int kCodes = 2, kOrder = 3, kRotations = 4, kFirstClass = 5, kBudget = 6;

  explicit BucketCandidatesCall(tensorflow::OpKernelConstruction* context);

  // Sets *queries, except for rotations. Checks shapes, and of numbers only the budget.
  absl::Status GetQueries(tensorflow::OpKernelContext* context, const core::HashTables& tables,
                          core::BucketQueries* queries) const;

  // *marks becomes null if they are not requested.
  absl::Status AllocateOutputs(tensorflow::OpKernelContext* context,
                               const core::BucketQueries& queries, int64_t** ids,
                               int64_t** marks) const;

  bool own() const { return own_; }

  // The errors.
  static absl::Status CodeError(int64_t buckets_of_range, int32_t got);
  static absl::Status OrderError(int64_t num_tables, int64_t place, int32_t got);
  static absl::Status RotationError(int64_t place, int64_t got);
  static absl::Status FirstClassError(int64_t num_classes, int64_t got);
  static absl::Status CorruptError();

 private:
  bool own_, gives_marks_;
  int64_t most_of_bucket_, num_ranges_;
};

}  // namespace tfx

#endif  // TFX_LARGEOUT_KERNELS_BUCKET_CANDIDATES_OP_H_
