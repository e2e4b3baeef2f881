// SPDX-License-Identifier: Apache-2.0

#include "kernels/bucket_candidates_op.h"

#include <limits>

#include "kernels/hash_arguments.h"
#include "kernels/invalid_argument.h"

namespace tfx {

namespace tf = tensorflow;

BucketCandidatesCall::BucketCandidatesCall(tf::OpKernelConstruction* context) {
  OP_REQUIRES_OK(context, context->GetAttr("own", &own_));
  OP_REQUIRES_OK(context, context->GetAttr("gives_marks", &gives_marks_));
  OP_REQUIRES_OK(context, context->GetAttr("most_of_bucket", &most_of_bucket_));
  OP_REQUIRES_OK(context, context->GetAttr("num_ranges", &num_ranges_));
}

absl::Status BucketCandidatesCall::GetQueries(tf::OpKernelContext* context,
                                              const core::HashTables& tables,
                                              core::BucketQueries* queries) const {
  const tf::Tensor &codes = context->input(kCodes), &order = context->input(kOrder),
                   &rotations = context->input(kRotations);
  if (tables.num_buckets % num_ranges_ != 0) {
    return InvalidArgument("starts must have as many buckets in each of num_ranges = ", num_ranges_,
                           " ranges; got ", tables.num_buckets, " buckets");
  }
  TF_RETURN_IF_ERROR(CheckScalar("budget", context->input(kBudget)));
  const int64_t budget = context->input(kBudget).scalar<int64_t>()();
  if (codes.dims() != 3 || codes.dim_size(2) != tables.num_tables ||
      codes.dim_size(0) > std::numeric_limits<int32_t>::max()) {
    return InvalidArgument("codes must be [N, Q, L] with L = ", tables.num_tables,
                           " and N below 2^31; got shape ", codes.shape().DebugString());
  }
  if (budget < 1 || budget > tables.num_classes) {
    return InvalidArgument("budget must be in [1, C] = [1, ", tables.num_classes, "]; got ",
                           budget);
  }
  if (order.shape() != tf::TensorShape({tables.num_tables})) {
    return InvalidArgument("order must be a permutation of the ", tables.num_tables,
                           " tables; got shape ", order.shape().DebugString());
  }
  if (rotations.shape() != order.shape()) {
    return InvalidArgument("rotations must be [L]; got shape ", rotations.shape().DebugString());
  }
  TF_RETURN_IF_ERROR(CheckScalar("first_class", context->input(kFirstClass)));
  *queries = {codes.flat<int32_t>().data(),
              codes.dim_size(0),
              codes.dim_size(1),
              order.flat<int32_t>().data(),
              nullptr,
              most_of_bucket_,
              budget,
              num_ranges_};
  return absl::OkStatus();
}

absl::Status BucketCandidatesCall::AllocateOutputs(tf::OpKernelContext* context,
                                                   const core::BucketQueries& queries,
                                                   int64_t** ids, int64_t** marks) const {
  tf::TensorShape shape({queries.budget});
  if (own_) TF_RETURN_IF_ERROR(shape.InsertDimWithStatus(0, queries.size));
  tf::Tensor *of_ids, *of_marks;
  TF_RETURN_IF_ERROR(context->allocate_output(0, shape, &of_ids));
  TF_RETURN_IF_ERROR(
      context->allocate_output(1, gives_marks_ ? shape : tf::TensorShape({0}), &of_marks));
  *ids = of_ids->flat<int64_t>().data();
  *marks = gives_marks_ ? of_marks->flat<int64_t>().data() : nullptr;
  return absl::OkStatus();
}

absl::Status BucketCandidatesCall::CodeError(int64_t buckets_of_range, int32_t got) {
  return InvalidArgument("codes must be below ", buckets_of_range,
                         ", the number of buckets of a range; got ", got);
}

absl::Status BucketCandidatesCall::OrderError(int64_t num_tables, int64_t place, int32_t got) {
  return InvalidArgument("order must be a permutation of the ", num_tables, " tables; got ", got,
                         " at position [", place, "]");
}

absl::Status BucketCandidatesCall::RotationError(int64_t place, int64_t got) {
  return InvalidArgument("rotations must be in [0, 2^32); got ", got, " at position [", place, "]");
}

absl::Status BucketCandidatesCall::FirstClassError(int64_t num_classes, int64_t got) {
  return InvalidArgument("first_class must be in [0, ", num_classes, "); got ", got);
}

absl::Status BucketCandidatesCall::CorruptError() {
  return InvalidArgument("entries and starts must be tables as they were written; one is corrupt",
                         kRebuild);
}

}  // namespace tfx
