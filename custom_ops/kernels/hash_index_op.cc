// SPDX-License-Identifier: Apache-2.0

#include "kernels/hash_index_op.h"

#include "kernels/invalid_argument.h"

namespace tfx {

namespace tf = tensorflow;

namespace {

absl::Status CheckTimes(const LockedVariables& variables, const core::HashFamily& family,
                        const core::HashTables& tables, int64_t num_classes) {
  const tf::Tensor &touched_at = *variables.tensor(HashIndexCall::kTouchedAt),
                   &built_at = *variables.tensor(HashIndexCall::kBuiltAt);
  if (tables.num_classes != num_classes || tables.num_tables != family.num_tables) {
    return InvalidArgument("entries must be [L, C] = [", family.num_tables, ", ", num_classes,
                           "]; got [", tables.num_tables, ", ", tables.num_classes, "]");
  }
  if (touched_at.dtype() != tf::DT_UINT32 || touched_at.shape() != tf::TensorShape({num_classes}) ||
      built_at.dtype() != tf::DT_UINT32 ||
      built_at.shape() != tf::TensorShape({tables.num_tables})) {
    return InvalidArgument("touched_at and built_at must be uint32 [C] and [L]; got shapes ",
                           touched_at.shape().DebugString(), " and ",
                           built_at.shape().DebugString());
  }
  return absl::OkStatus();
}

}  // namespace

HashIndexCall::HashIndexCall(tf::OpKernelConstruction* context) : functions_(context) {
  OP_REQUIRES_OK(context, layer_.ReadAttributes(context));
  first_input_ = kKernel + 1 + layer_.num_biases();
}

std::vector<std::string> HashIndexCall::Names() const {
  std::vector<std::string> names = {"entries", "starts", "touched_at", "built_at"};
  for (const std::string& name : layer_.Names()) names.push_back(name);
  return names;
}

absl::Status HashIndexCall::Get(tf::OpKernelContext* context, const LockedVariables& variables,
                                Arguments* arguments) const {
  const tf::Tensor& kernel = *variables.tensor(kKernel);
  const tf::Tensor &now = context->input(first_input_ + 3),
                   &range = context->input(first_input_ + 4),
                   &radii = context->input(first_input_ + 5);
  core::HashFamily& family = arguments->family;
  core::HashTables& tables = arguments->tables;
  TF_RETURN_IF_ERROR(layer_.CheckShapes(variables, kKernel));
  if (radii.dims() != 1) {
    return InvalidArgument("radii must be [m]; got shape ", radii.shape().DebugString());
  }
  const int64_t width = kernel.dim_size(1) + (radii.NumElements() > 0 ? 2 : 0);
  TF_RETURN_IF_ERROR(functions_.Get(context->input(first_input_), context->input(first_input_ + 1),
                                    width, &family));
  family.radii = radii.flat<float>().data();
  family.num_radii = radii.NumElements();
  if (family.NumBuckets() > kMostBuckets) {
    return InvalidArgument("a table must have at most 2^24 buckets; got ", family.NumBuckets(),
                           " for ", family.num_radii, " radii");
  }
  TF_RETURN_IF_ERROR(GetTables(variables, kEntries, family.NumBuckets(), &tables));
  TF_RETURN_IF_ERROR(CheckTimes(variables, family, tables, kernel.dim_size(0)));
  const tf::TensorShape& touched = Touched(context).shape();
  if (touched.dims() != 1) {
    return InvalidArgument("touched must be [n]; got shape ", touched.DebugString());
  }
  TF_RETURN_IF_ERROR(CheckScalar("now", now));
  arguments->now = now.scalar<int32_t>()();
  if (arguments->now < 0) return InvalidArgument("now must be at least 0; got ", arguments->now);
  if (range.shape() != tf::TensorShape({2})) {
    return InvalidArgument("tables must be [first, the one behind the last]; got shape ",
                           range.shape().DebugString());
  }
  const int64_t begin = range.flat<int64_t>()(0), end = range.flat<int64_t>()(1);
  if (begin < 0 || begin > end || end > tables.num_tables) {
    return InvalidArgument("tables must be a range in [0, ", tables.num_tables, "]; got [", begin,
                           ", ", end, ")");
  }
  arguments->begin = begin;
  arguments->end = end;
  return absl::OkStatus();
}

core::RowTimes HashIndexCall::Times(const LockedVariables& variables) {
  return {TouchedAt(variables), static_cast<int32_t*>(variables.tensor(kBuiltAt)->data())};
}

int32_t* HashIndexCall::TouchedAt(const LockedVariables& variables) {
  return static_cast<int32_t*>(variables.tensor(kTouchedAt)->data());
}

absl::Status HashIndexCall::RadiusError(int64_t place, float got) {
  return InvalidArgument("radii must fall, and be finite and above 0, and so their squares; got ",
                         got, " at position [", place, "]", kRebuild);
}

absl::Status HashIndexCall::RowError(int64_t row) {
  return InvalidArgument("kernel must be finite; got an infinite or NaN number in row ", row);
}

absl::Status HashIndexCall::TableError(int64_t table) {
  return InvalidArgument("entries and starts must be a table as it was written; table ", table,
                         " is corrupt", kRebuild);
}

}  // namespace tfx
