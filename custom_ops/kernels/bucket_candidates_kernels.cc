// SPDX-License-Identifier: Apache-2.0

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "core/bucket_candidates.h"
#include "kernels/bucket_candidates_op.h"
#include "kernels/cpu_op.h"
#include "kernels/hash_arguments.h"
#include "kernels/locked_variables.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tfx {
namespace {

namespace tf = tensorflow;

class BucketCandidatesOp : public CpuOp {
 public:
  using Call = BucketCandidatesCall;

  explicit BucketCandidatesOp(tf::OpKernelConstruction* context) : CpuOp(context), call_(context) {}

 protected:
  absl::Status Run(tf::OpKernelContext* context, core::Execution execution) const override {
    LockedVariables variables;
    TF_RETURN_IF_ERROR(
        variables.Lock(context, {"entries", "starts"}, LockedVariables::Mode::kShared));
    core::HashTables tables;
    TF_RETURN_IF_ERROR(GetTables(variables, 0, 0, &tables));
    core::BucketQueries queries;
    TF_RETURN_IF_ERROR(call_.GetQueries(context, tables, &queries));
    TF_RETURN_IF_ERROR(CheckCodes(queries, tables));
    TF_RETURN_IF_ERROR(CheckOrder(queries, tables.num_tables));
    std::vector<uint32_t> rotations;
    TF_RETURN_IF_ERROR(GetRotations(context->input(Call::kRotations), &rotations));
    queries.rotations = rotations.data();
    const int64_t first_class = context->input(Call::kFirstClass).scalar<int64_t>()();
    if (first_class < 0 || first_class >= tables.num_classes) {
      return Call::FirstClassError(tables.num_classes, first_class);
    }
    int64_t *ids, *marks;
    TF_RETURN_IF_ERROR(call_.AllocateOutputs(context, queries, &ids, &marks));
    const bool good = Find(tables, queries, first_class, execution, ids, marks);
    return good ? absl::OkStatus() : Call::CorruptError();
  }

 private:
  bool Find(const core::HashTables& tables, const core::BucketQueries& queries, int64_t first_class,
            const core::Execution& execution, int64_t* ids, int64_t* marks) const {
    if (call_.own()) return core::OwnBucketCandidates(tables, queries, execution, ids, marks);
    core::Pool<core::BucketVotes>::Loan votes(core::PoolOfProcess<core::BucketVotes>());
    return votes->Candidates(tables, queries, first_class, execution, ids, marks);
  }

  static absl::Status CheckCodes(const core::BucketQueries& queries,
                                 const core::HashTables& tables) {
    const int64_t n = queries.size * queries.num_queries * tables.num_tables;
    const int64_t of_range = tables.num_buckets / queries.num_ranges;
    const int32_t* most = std::max_element(queries.codes, queries.codes + n);
    if (n == 0 || *most < of_range) return absl::OkStatus();
    return Call::CodeError(of_range, *most);
  }

  static absl::Status CheckOrder(const core::BucketQueries& queries, int64_t num_tables) {
    std::vector<bool> seen(num_tables);
    for (int64_t i = 0; i < num_tables; ++i) {
      const int32_t t = queries.order[i];
      if (t < 0 || t >= num_tables || seen[t]) return Call::OrderError(num_tables, i, t);
      seen[t] = true;
    }
    return absl::OkStatus();
  }

  static absl::Status GetRotations(const tf::Tensor& given, std::vector<uint32_t>* rotations) {
    const auto numbers = given.flat<int64_t>();
    for (int64_t t = 0; t < numbers.size(); ++t) {
      if (numbers(t) < 0 || numbers(t) > std::numeric_limits<uint32_t>::max()) {
        return Call::RotationError(t, numbers(t));
      }
      rotations->push_back(static_cast<uint32_t>(numbers(t)));
    }
    return absl::OkStatus();
  }

  const Call call_;
};

REGISTER_KERNEL_BUILDER(Name("TfxBucketCandidates").Device(tf::DEVICE_CPU), BucketCandidatesOp);

}  // namespace
}  // namespace tfx
