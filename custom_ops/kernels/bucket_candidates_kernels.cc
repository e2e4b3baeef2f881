// SPDX-License-Identifier: Apache-2.0

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "core/bucket_candidates.h"
#include "kernels/cpu_op.h"
#include "kernels/hash_arguments.h"
#include "kernels/invalid_argument.h"
#include "kernels/locked_variables.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tfx {
namespace {

namespace tf = tensorflow;

class BucketCandidatesOp : public CpuOp {
 public:
  explicit BucketCandidatesOp(tf::OpKernelConstruction* context) : CpuOp(context) {
    OP_REQUIRES_OK(context, context->GetAttr("own", &own_));
    OP_REQUIRES_OK(context, context->GetAttr("gives_marks", &gives_marks_));
    OP_REQUIRES_OK(context, context->GetAttr("most_of_bucket", &most_of_bucket_));
    OP_REQUIRES_OK(context, context->GetAttr("num_ranges", &num_ranges_));
  }

 protected:
  absl::Status Run(tf::OpKernelContext* context, core::Execution execution) override {
    LockedVariables variables;
    TF_RETURN_IF_ERROR(
        variables.Lock(context, {"entries", "starts"}, LockedVariables::Mode::kShared));
    core::HashTables tables;
    TF_RETURN_IF_ERROR(GetTables(variables, 0, 0, &tables));
    if (tables.num_buckets % num_ranges_ != 0) {
      return InvalidArgument("starts must have as many buckets in each of num_ranges = ",
                             num_ranges_, " ranges; got ", tables.num_buckets, " buckets");
    }
    core::BucketQueries queries;
    std::vector<uint32_t> rotations;
    TF_RETURN_IF_ERROR(GetQueries(context, tables, &queries, &rotations));
    TF_RETURN_IF_ERROR(CheckScalar("first_class", context->input(5)));
    const int64_t first_class = context->input(5).scalar<int64_t>()();
    if (first_class < 0 || first_class >= tables.num_classes) {
      return InvalidArgument("first_class must be in [0, ", tables.num_classes, "); got ",
                             first_class);
    }
    tf::TensorShape shape({queries.budget});
    if (own_) TF_RETURN_IF_ERROR(shape.InsertDimWithStatus(0, queries.size));
    tf::Tensor *ids, *marks;
    TF_RETURN_IF_ERROR(context->allocate_output(0, shape, &ids));
    TF_RETURN_IF_ERROR(
        context->allocate_output(1, gives_marks_ ? shape : tf::TensorShape({0}), &marks));
    int64_t* to = ids->flat<int64_t>().data();
    int64_t* marks_to = gives_marks_ ? marks->flat<int64_t>().data() : nullptr;
    if (own_ ? core::OwnBucketCandidates(tables, queries, execution, to, marks_to)
             : votes_.Candidates(tables, queries, first_class, execution, to, marks_to)) {
      return absl::OkStatus();
    }
    return InvalidArgument("entries and starts must be tables as they were written; one is corrupt",
                           kRebuild);
  }

 private:
  absl::Status GetQueries(tf::OpKernelContext* context, const core::HashTables& tables,
                          core::BucketQueries* queries, std::vector<uint32_t>* rotations) const {
    const tf::Tensor &codes = context->input(2), &order = context->input(3),
                     &given_rotations = context->input(4);
    TF_RETURN_IF_ERROR(CheckScalar("budget", context->input(6)));
    const int64_t budget = context->input(6).scalar<int64_t>()();
    if (codes.dims() != 3 || codes.dim_size(2) != tables.num_tables ||
        codes.dim_size(0) > std::numeric_limits<int32_t>::max()) {
      return InvalidArgument("codes must be [N, Q, L] with L = ", tables.num_tables,
                             " and N below 2^31; got shape ", codes.shape().DebugString());
    }
    if (budget < 1 || budget > tables.num_classes) {
      return InvalidArgument("budget must be in [1, C] = [1, ", tables.num_classes, "]; got ",
                             budget);
    }
    TF_RETURN_IF_ERROR(CheckCodes(codes, tables.num_buckets / num_ranges_));
    TF_RETURN_IF_ERROR(CheckOrder(order, tables.num_tables));
    if (given_rotations.shape() != order.shape()) {
      return InvalidArgument("rotations must be [L]; got shape ",
                             given_rotations.shape().DebugString());
    }
    const auto numbers = given_rotations.flat<int64_t>();
    for (int64_t t = 0; t < tables.num_tables; ++t) {
      if (numbers(t) < 0 || numbers(t) > std::numeric_limits<uint32_t>::max()) {
        return InvalidArgument("rotations must be in [0, 2^32); got ", numbers(t), " at position [",
                               t, "]");
      }
      rotations->push_back(static_cast<uint32_t>(numbers(t)));
    }
    *queries = {codes.flat<int32_t>().data(),
                codes.dim_size(0),
                codes.dim_size(1),
                order.flat<int32_t>().data(),
                rotations->data(),
                most_of_bucket_,
                budget,
                num_ranges_};
    return absl::OkStatus();
  }

  static absl::Status CheckCodes(const tf::Tensor& codes, int64_t buckets_of_range) {
    const auto flat = codes.flat<int32_t>();
    const int32_t* begin = flat.data();
    const int32_t* most = std::max_element(begin, begin + flat.size());
    if (flat.size() == 0 || *most < buckets_of_range) return absl::OkStatus();
    return InvalidArgument("codes must be below ", buckets_of_range,
                           ", the number of buckets of a range; got ", *most);
  }

  static absl::Status CheckOrder(const tf::Tensor& order, int64_t num_tables) {
    if (order.shape() != tf::TensorShape({num_tables})) {
      return InvalidArgument("order must be a permutation of the ", num_tables,
                             " tables; got shape ", order.shape().DebugString());
    }
    std::vector<bool> seen(num_tables);
    for (int64_t i = 0; i < num_tables; ++i) {
      const int32_t t = order.flat<int32_t>()(i);
      if (t < 0 || t >= num_tables || seen[t]) {
        return InvalidArgument("order must be a permutation of the ", num_tables, " tables; got ",
                               t, " at position [", i, "]");
      }
      seen[t] = true;
    }
    return absl::OkStatus();
  }

  bool own_, gives_marks_;
  int64_t most_of_bucket_, num_ranges_;
  core::BucketVotes votes_;
};

REGISTER_KERNEL_BUILDER(Name("TfxBucketCandidates").Device(tf::DEVICE_CPU), BucketCandidatesOp);

}  // namespace
}  // namespace tfx
