// SPDX-License-Identifier: Apache-2.0

#include <limits>

#include "core/multi_index_draws.h"
#include "kernels/cpu_op.h"
#include "kernels/invalid_argument.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tfx {
namespace {

namespace tf = tensorflow;

constexpr int64_t kMostWords = 1 << 15;

class MultiIndexDrawsOp : public CpuOp {
 public:
  using CpuOp::CpuOp;

 protected:
  absl::Status Run(tf::OpKernelContext* context, core::Execution execution) const override {
    core::PairLists lists;
    core::MultiIndexDraws draws;
    TF_RETURN_IF_ERROR(GetDraws(context, &draws, &lists.num_words));
    TF_RETURN_IF_ERROR(GetLists(context, &lists));
    tf::Tensor *ids, *log_probability;
    const tf::TensorShape shape = {draws.batch, draws.num_draws};
    TF_RETURN_IF_ERROR(context->allocate_output(0, shape, &ids));
    TF_RETURN_IF_ERROR(context->allocate_output(1, shape, &log_probability));
    if (draws.Run(lists, execution, ids->flat<int64_t>().data(),
                  log_probability->flat<double>().data())) {
      return absl::OkStatus();
    }
    return Damaged();
  }

 private:
  static absl::Status GetDraws(tf::OpKernelContext* context, core::MultiIndexDraws* draws,
                               int64_t* num_words) {
    const tf::Tensor &first = context->input(0), &second = context->input(1),
                     &uniform = context->input(6);
    if (first.dims() != 2 || first.dim_size(1) < 1 || first.dim_size(1) > kMostWords ||
        first.shape() != second.shape()) {
      return InvalidArgument("first and second must be [B, Q] with Q in [1, ", kMostWords,
                             "]; got shapes ", first.shape().DebugString(), " and ",
                             second.shape().DebugString());
    }
    if (uniform.dims() != 3 || uniform.dim_size(0) != first.dim_size(0) ||
        uniform.dim_size(2) != 3) {
      return InvalidArgument("uniform must be [B, S, 3] with B = ", first.dim_size(0),
                             "; got shape ", uniform.shape().DebugString());
    }
    const auto numbers = uniform.flat<double>();
    for (int64_t i = 0; i < numbers.size(); ++i) {
      if (!(numbers(i) >= 0 && numbers(i) < 1)) {
        return InvalidArgument("uniform must be in [0, 1); got ", numbers(i));
      }
    }
    *draws = {first.flat<double>().data(), second.flat<double>().data(), numbers.data(),
              uniform.dim_size(0), uniform.dim_size(1)};
    *num_words = first.dim_size(1);
    return absl::OkStatus();
  }

  static absl::Status GetLists(tf::OpKernelContext* context, core::PairLists* lists) {
    const tf::Tensor &codes = context->input(2), &entries = context->input(3),
                     &starts = context->input(4), &sums = context->input(5);
    const int64_t num_classes = codes.NumElements();
    if (codes.dims() != 1 || num_classes < 1 || num_classes > std::numeric_limits<int32_t>::max()) {
      return InvalidArgument("codes must be [C] with C in [1, 2^31); got shape ",
                             codes.shape().DebugString());
    }
    if (entries.shape() != codes.shape() || sums.shape() != tf::TensorShape({num_classes + 1})) {
      return InvalidArgument("entries and sums must be [C] and [C + 1] with C = ", num_classes,
                             "; got shapes ", entries.shape().DebugString(), " and ",
                             sums.shape().DebugString());
    }
    if (starts.dims() != 1 || starts.NumElements() - 1 != lists->num_words * lists->num_words) {
      return InvalidArgument("starts must be [Q^2 + 1] with Q = ", lists->num_words, "; got shape ",
                             starts.shape().DebugString());
    }
    lists->codes = codes.flat<int32_t>().data();
    lists->entries = entries.flat<int32_t>().data();
    lists->starts = starts.flat<int32_t>().data();
    lists->sums = sums.flat<int64_t>().data();
    lists->num_classes = num_classes;
    return core::AreLists(*lists) ? absl::OkStatus() : Damaged();
  }

  static absl::Status Damaged() {
    return InvalidArgument(
        "codes, entries, starts and sums must be lists of classes by pair; they are damaged: call "
        "rebuild");
  }
};

REGISTER_KERNEL_BUILDER(Name("TfxMultiIndexDraws").Device(tf::DEVICE_CPU), MultiIndexDrawsOp);

}  // namespace
}  // namespace tfx
