// SPDX-License-Identifier: Apache-2.0

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <mutex>
#include <string>
#include <vector>

#include "core/bucket_candidates.h"
#include "core/hash_family.h"
#include "core/hash_tables.h"
#include "kernels/check_ids.h"
#include "kernels/invalid_argument.h"
#include "kernels/locked_variables.h"
#include "kernels/parallel_for.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tfx {
namespace {

namespace tf = tensorflow;

constexpr int64_t kMostBuckets = int64_t{1} << 24;
constexpr const char* kRebuild = "; rebuild the index";

// The attributes and inputs that make a hash family.
class Family {
 public:
  explicit Family(tf::OpKernelConstruction* context) {
    OP_REQUIRES_OK(context, context->GetAttr("num_tables", &num_tables_));
    OP_REQUIRES_OK(context, context->GetAttr("hashes_per_table", &hashes_per_table_));
    OP_REQUIRES_OK(context, context->GetAttr("bins", &bins_));
  }

  // Of vectors of a width. Checks everything.
  absl::Status Get(const tf::Tensor& elements, const tf::Tensor& planes, int64_t width,
                   core::HashFamily* family) const {
    const bool by_winner = elements.NumElements() > 0;
    const tf::Tensor& given = by_winner ? elements : planes;
    if (elements.dims() != 2 || planes.dims() != 2 || by_winner == (planes.NumElements() > 0)) {
      return InvalidArgument(
          "one of elements and planes must be a matrix, the other one empty; got ", "shapes ",
          elements.shape().DebugString(), " and ", planes.shape().DebugString());
    }
    *family = {by_winner ? elements.flat<int32_t>().data() : nullptr,
               by_winner ? nullptr : planes.flat<float>().data(),
               given.dim_size(0),
               given.dim_size(1),
               bins_,
               width,
               hashes_per_table_,
               num_tables_,
               nullptr,
               0};
    const double needed = static_cast<double>(hashes_per_table_) * num_tables_;  // can't overflow
    if (family->num_hashes < needed || family->num_hashes % bins_ != 0) {
      return InvalidArgument("there must be hashes_per_table * num_tables = ", needed,
                             " hashes, up to whole ", bins_, " bins; got ", family->num_hashes);
    }
    if (!by_winner && (family->window != width || bins_ != 1)) {
      return InvalidArgument("planes must be [H, D] with D = ", width, ", without bins; got shape ",
                             planes.shape().DebugString(), " and ", bins_, " bins");
    }
    if (by_winner && family->window < 2) {
      return InvalidArgument("elements must be [H, window] with a window of at least 2; got shape ",
                             elements.shape().DebugString());
    }
    return by_winner ? CheckElements(elements, *family) : CheckBuckets(*family);
  }

 private:
  static absl::Status CheckElements(const tf::Tensor& elements, const core::HashFamily& family) {
    for (int64_t i = 0; i < elements.NumElements(); ++i) {
      if (family.elements[i] < 0 || family.elements[i] >= family.width) {
        return InvalidArgument("elements must be in [0, ", family.width, "); got ",
                               family.elements[i], " at position [", i / family.window, ", ",
                               i % family.window, "]");
      }
    }
    return CheckBuckets(family);
  }

  static absl::Status CheckBuckets(const core::HashFamily& family) {
    const double base = family.elements != nullptr ? family.window : 2;
    if (std::pow(base, family.hashes_per_table) <= kMostBuckets) return absl::OkStatus();
    return InvalidArgument("a table must have at most 2^24 buckets; got ", base, "^",
                           family.hashes_per_table);
  }

  int64_t num_tables_, hashes_per_table_, bins_;
};

absl::Status CheckScalar(const char* name, const tf::Tensor& value) {
  if (value.dims() == 0) return absl::OkStatus();
  return InvalidArgument(name, " must be a scalar; got shape ", value.shape().DebugString());
}

core::Hasher::Resources HasherResources(core::InstructionSet set) {
  return {core::HashKernelsOf(set), core::DenseKernelsOf<float>(set), core::RowKernelsOf(set)};
}

class HashCodesOp : public tf::OpKernel {
 public:
  explicit HashCodesOp(tf::OpKernelConstruction* context)
      : tf::OpKernel(context), family_(context) {}

  void Compute(tf::OpKernelContext* context) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    core::InstructionSet set;
    std::string error;
    OP_REQUIRES(context, core::ChooseInstructionSet(&set, &error), InvalidArgument(error));
    const tf::Tensor& vectors = context->input(0);
    OP_REQUIRES(context,
                vectors.dims() == 2 && vectors.dim_size(0) <= std::numeric_limits<int32_t>::max(),
                InvalidArgument("vectors must be [n, D] with n below 2^31; got shape ",
                                vectors.shape().DebugString()));
    core::HashFamily family;
    OP_REQUIRES_OK(context,
                   family_.Get(context->input(1), context->input(2), vectors.dim_size(1), &family));
    tf::Tensor* codes;
    OP_REQUIRES_OK(context,
                   context->allocate_output(0, {vectors.dim_size(0), family.num_tables}, &codes));
    const core::LayerWeights rows = {vectors.data(), nullptr, false, vectors.dim_size(0),
                                     vectors.dim_size(1)};
    const core::Workspace::Scope scope(workspace_);
    const int64_t bad = core::HashCodes(family, rows, HasherResources(set), NumWorkers(context),
                                        PoolOf(context), workspace_, codes->flat<int32_t>().data());
    OP_REQUIRES(
        context, bad < 0,
        InvalidArgument("vectors must be finite; got an infinite or NaN number in row ", bad));
  }

 private:
  const Family family_;
  std::mutex mutex_;
  core::Workspace workspace_;  // guarded by mutex_
};

absl::Status GetTables(const LockedVariables& variables, int first, int64_t num_buckets,
                       core::HashTables* tables) {
  const tf::Tensor& entries = *variables.tensor(first);
  const tf::Tensor& starts = *variables.tensor(first + 1);
  if (entries.dtype() != tf::DT_INT32 || entries.dims() != 2 || entries.NumElements() == 0 ||
      entries.dim_size(1) > std::numeric_limits<int32_t>::max()) {
    return InvalidArgument("entries must be int32 [L, C] with L and C at least 1; got ",
                           tf::DataTypeString(entries.dtype()), " of shape ",
                           entries.shape().DebugString());
  }
  if (starts.dtype() != tf::DT_INT32 || starts.dims() != 2 ||
      starts.dim_size(0) != entries.dim_size(0) || starts.dim_size(1) < 2 ||
      (num_buckets > 0 && starts.dim_size(1) != num_buckets + 1)) {
    return InvalidArgument("starts must be int32 [L, buckets + 1] with the L of entries, ",
                           entries.dim_size(0), "; got ", tf::DataTypeString(starts.dtype()),
                           " of shape ", starts.shape().DebugString());
  }
  *tables = {static_cast<int32_t*>(entries.data()), static_cast<int32_t*>(starts.data()),
             entries.dim_size(0), entries.dim_size(1), starts.dim_size(1) - 1};
  return absl::OkStatus();
}

class HashIndexUpdateOp : public tf::OpKernel {
 public:
  explicit HashIndexUpdateOp(tf::OpKernelConstruction* context)
      : tf::OpKernel(context), family_(context) {
    OP_REQUIRES_OK(context, context->GetAttr("dtype", &dtype_));
    OP_REQUIRES_OK(context, context->GetAttr("num_biases", &num_biases_));
    OP_REQUIRES(context, num_biases_ <= 1,
                InvalidArgument("bias must be at most one variable; got ", num_biases_));
  }

  void Compute(tf::OpKernelContext* context) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    core::InstructionSet set;
    std::string error;
    OP_REQUIRES(context, core::ChooseInstructionSet(&set, &error), InvalidArgument(error));
    LockedVariables variables;
    std::vector<std::string> names = {"entries", "starts", "touched_at", "built_at", "kernel"};
    if (num_biases_ > 0) names.push_back("bias");
    OP_REQUIRES_OK(context, variables.Lock(context, names, LockedVariables::Mode::kExclusive));
    tf::Tensor* moved;
    OP_REQUIRES_OK(context, context->allocate_output(0, {}, &moved));
    OP_REQUIRES_OK(context, Run(context, set, variables, &moved->scalar<int64_t>()()));
  }

 private:
  absl::Status Run(tf::OpKernelContext* context, core::InstructionSet set,
                   LockedVariables& variables, int64_t* moved) {
    const tf::Tensor& kernel = *variables.tensor(kKernel);
    const int first = variables.size();
    const tf::Tensor &touched = context->input(first + 2), &now_of_call = context->input(first + 3),
                     &range = context->input(first + 4), &radii = context->input(first + 5);
    core::HashFamily family;
    TF_RETURN_IF_ERROR(CheckWeights(variables));
    TF_RETURN_IF_ERROR(CheckRadii(radii));
    const int64_t width = kernel.dim_size(1) + (radii.NumElements() > 0 ? 2 : 0);
    TF_RETURN_IF_ERROR(
        family_.Get(context->input(first), context->input(first + 1), width, &family));
    family.radii = radii.flat<float>().data();
    family.num_radii = radii.NumElements();
    if (family.NumBuckets() > kMostBuckets) {
      return InvalidArgument("a table must have at most 2^24 buckets; got ", family.NumBuckets(),
                             " for ", family.num_radii, " radii");
    }
    core::HashTables tables;
    TF_RETURN_IF_ERROR(GetTables(variables, 0, family.NumBuckets(), &tables));
    TF_RETURN_IF_ERROR(CheckTimes(variables, family, tables, kernel.dim_size(0)));
    if (touched.dims() != 1) {
      return InvalidArgument("touched must be [n]; got shape ", touched.shape().DebugString());
    }
    TF_RETURN_IF_ERROR(
        CheckIds("touched", touched, -1, tables.num_classes, core::RowKernelsOf(set)));
    TF_RETURN_IF_ERROR(CheckScalar("now", now_of_call));
    const int32_t now = now_of_call.scalar<int32_t>()();
    if (now < 0) return InvalidArgument("now must be at least 0; got ", now);
    if (range.shape() != tf::TensorShape({2})) {
      return InvalidArgument("tables must be [first, the one behind the last]; got shape ",
                             range.shape().DebugString());
    }
    const int64_t begin = range.flat<int64_t>()(0), end = range.flat<int64_t>()(1);
    if (begin < 0 || begin > end || end > tables.num_tables) {
      return InvalidArgument("tables must be a range in [0, ", tables.num_tables, "]; got [", begin,
                             ", ", end, ")");
    }
    for (int i = 0; i < kKernel; ++i) TF_RETURN_IF_ERROR(variables.Own(i));
    TF_RETURN_IF_ERROR(GetTables(variables, 0, family.NumBuckets(), &tables));
    *moved = 0;
    Touch(touched, now, variables);
    if (begin == end) return absl::OkStatus();
    return Build(context, set, family, variables, tables, begin, end, now, moved);
  }

  static absl::Status CheckRadii(const tf::Tensor& radii) {
    if (radii.dims() != 1) {
      return InvalidArgument("radii must be [m]; got shape ", radii.shape().DebugString());
    }
    const auto r = radii.flat<float>();
    for (int64_t i = 0; i < r.size(); ++i) {
      const float square = r(i) * r(i);
      if (r(i) > 0 && square > 0 && std::isfinite(square) && (i == 0 || r(i) < r(i - 1))) continue;
      return InvalidArgument("radii must fall, and be finite and above 0, and so their squares; ",
                             "got ", r(i), " at position [", i, "]", kRebuild);
    }
    return absl::OkStatus();
  }

  absl::Status CheckWeights(const LockedVariables& variables) const {
    const tf::Tensor& kernel = *variables.tensor(kKernel);
    if (kernel.dtype() != dtype_ || kernel.dims() != 2) {
      return InvalidArgument("kernel must be ", tf::DataTypeString(dtype_), " [C, D]; got ",
                             tf::DataTypeString(kernel.dtype()), " of shape ",
                             kernel.shape().DebugString());
    }
    if (num_biases_ == 0) return absl::OkStatus();
    const tf::Tensor& bias = *variables.tensor(kKernel + 1);
    if (bias.dtype() == dtype_ && bias.shape() == tf::TensorShape({kernel.dim_size(0)})) {
      return absl::OkStatus();
    }
    return InvalidArgument("bias must be ", tf::DataTypeString(dtype_),
                           " [C] with the C of kernel, ", kernel.dim_size(0), "; got ",
                           tf::DataTypeString(bias.dtype()), " of shape ",
                           bias.shape().DebugString());
  }

  static absl::Status CheckTimes(const LockedVariables& variables, const core::HashFamily& family,
                                 const core::HashTables& tables, int64_t num_classes) {
    const tf::Tensor &touched_at = *variables.tensor(2), &built_at = *variables.tensor(3);
    if (tables.num_classes != num_classes || tables.num_tables != family.num_tables) {
      return InvalidArgument("entries must be [L, C] = [", family.num_tables, ", ", num_classes,
                             "]; got [", tables.num_tables, ", ", tables.num_classes, "]");
    }
    if (touched_at.dtype() != tf::DT_INT32 ||
        touched_at.shape() != tf::TensorShape({num_classes}) || built_at.dtype() != tf::DT_INT32 ||
        built_at.shape() != tf::TensorShape({tables.num_tables})) {
      return InvalidArgument("touched_at and built_at must be int32 [C] and [L]; got shapes ",
                             touched_at.shape().DebugString(), " and ",
                             built_at.shape().DebugString());
    }
    return absl::OkStatus();
  }

  absl::Status Build(tf::OpKernelContext* context, core::InstructionSet set,
                     const core::HashFamily& family, const LockedVariables& variables,
                     const core::HashTables& tables, int64_t begin, int64_t end, int32_t now,
                     int64_t* moved) {
    const tf::Tensor& kernel = *variables.tensor(kKernel);
    const void* bias = num_biases_ == 0 ? nullptr : variables.tensor(kKernel + 1)->data();
    const core::LayerWeights weights = {kernel.data(), bias, kernel.dtype() == tf::DT_BFLOAT16,
                                        kernel.dim_size(0), kernel.dim_size(1)};
    const core::RowTimes times = {static_cast<const int32_t*>(variables.tensor(2)->data()),
                                  static_cast<int32_t*>(variables.tensor(3)->data())};
    // What building all tables takes is not kept.
    core::Workspace of_call;
    core::Workspace& workspace = end - begin > kTablesOfKeptScratch ? of_call : workspace_;
    const core::Workspace::Scope scope(workspace);
    const core::ParallelFor pool = PoolOf(context);
    const core::HashFault fault =
        core::UpdateTables(family, weights, times, begin, end, now, tables,
                           {HasherResources(set), NumWorkers(context), pool, workspace}, moved);
    if (fault.row >= 0) {
      return InvalidArgument("kernel must be finite; got an infinite or NaN number in row ",
                             fault.row);
    }
    if (fault.table >= 0) {
      return InvalidArgument("entries and starts must be a table as it was written; table ",
                             fault.table, " is corrupt", kRebuild);
    }
    return absl::OkStatus();
  }

  // Marks stay where Build refuses what it finds: W has changed.
  static void Touch(const tf::Tensor& touched, int32_t now, const LockedVariables& variables) {
    int32_t* touched_at = static_cast<int32_t*>(variables.tensor(2)->data());
    const auto ids = touched.flat<int64_t>();
    for (int64_t i = 0; i < ids.size(); ++i) {
      if (ids(i) >= 0) touched_at[ids(i)] = now;
    }
  }

  static constexpr int64_t kTablesOfKeptScratch = 4;
  static constexpr int kKernel = 4;  // variables: four of the index, then W and perhaps b

  const Family family_;
  tf::DataType dtype_;
  int num_biases_;
  std::mutex mutex_;
  core::Workspace workspace_;  // guarded by mutex_
};

class BucketCandidatesOp : public tf::OpKernel {
 public:
  explicit BucketCandidatesOp(tf::OpKernelConstruction* context) : tf::OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("own", &own_));
    OP_REQUIRES_OK(context, context->GetAttr("most_of_bucket", &most_of_bucket_));
    OP_REQUIRES_OK(context, context->GetAttr("num_ranges", &num_ranges_));
  }

  void Compute(tf::OpKernelContext* context) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    LockedVariables variables;
    OP_REQUIRES_OK(context,
                   variables.Lock(context, {"entries", "starts"}, LockedVariables::Mode::kShared));
    core::HashTables tables;
    OP_REQUIRES_OK(context, GetTables(variables, 0, 0, &tables));
    OP_REQUIRES(context, tables.num_buckets % num_ranges_ == 0,
                InvalidArgument("starts must have as many buckets in each of num_ranges = ",
                                num_ranges_, " ranges; got ", tables.num_buckets, " buckets"));
    core::BucketQueries queries;
    std::vector<uint32_t> rotations;
    OP_REQUIRES_OK(context, GetQueries(context, tables, &queries, &rotations));
    OP_REQUIRES_OK(context, CheckScalar("first_class", context->input(5)));
    const int64_t first_class = context->input(5).scalar<int64_t>()();
    OP_REQUIRES(
        context, first_class >= 0 && first_class < tables.num_classes,
        InvalidArgument("first_class must be in [0, ", tables.num_classes, "); got ", first_class));
    tf::TensorShape shape({queries.budget});
    if (own_) OP_REQUIRES_OK(context, shape.InsertDimWithStatus(0, queries.size));
    tf::Tensor* ids;
    OP_REQUIRES_OK(context, context->allocate_output(0, shape, &ids));
    const core::Workspace::Scope scope(workspace_);
    const core::ParallelFor pool = PoolOf(context);
    const core::BucketResources resources = {NumWorkers(context), pool, workspace_};
    int64_t* to = ids->flat<int64_t>().data();
    const bool good = own_ ? core::OwnBucketCandidates(tables, queries, resources, to)
                           : votes_.Candidates(tables, queries, first_class, resources, to);
    OP_REQUIRES(
        context, good,
        InvalidArgument("entries and starts must be tables as they were written; one is corrupt",
                        kRebuild));
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

  bool own_;
  int64_t most_of_bucket_, num_ranges_;
  std::mutex mutex_;
  core::Workspace workspace_;  // guarded by mutex_
  core::BucketVotes votes_;    // guarded by mutex_
};

REGISTER_KERNEL_BUILDER(Name("TfxHashCodes").Device(tf::DEVICE_CPU), HashCodesOp);
REGISTER_KERNEL_BUILDER(Name("TfxHashIndexUpdate").Device(tf::DEVICE_CPU), HashIndexUpdateOp);
REGISTER_KERNEL_BUILDER(Name("TfxBucketCandidates").Device(tf::DEVICE_CPU), BucketCandidatesOp);

}  // namespace
}  // namespace tfx
