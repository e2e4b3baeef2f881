// SPDX-License-Identifier: Apache-2.0

#include <cstdint>
#include <limits>

#include "core/hash_family.h"
#include "kernels/cpu_op.h"
#include "kernels/hash_arguments.h"
#include "kernels/invalid_argument.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tfx {
namespace {

namespace tf = tensorflow;

class HashCodesOp : public CpuOp {
 public:
  explicit HashCodesOp(tf::OpKernelConstruction* context) : CpuOp(context), functions_(context) {}

 protected:
  absl::Status Run(tf::OpKernelContext* context, core::Execution execution) override {
    const tf::Tensor& vectors = context->input(0);
    if (vectors.dims() != 2 || vectors.dim_size(0) > std::numeric_limits<int32_t>::max()) {
      return InvalidArgument("vectors must be [n, D] with n below 2^31; got shape ",
                             vectors.shape().DebugString());
    }
    core::HashFamily family;
    TF_RETURN_IF_ERROR(
        functions_.Get(context->input(1), context->input(2), vectors.dim_size(1), &family));
    tf::Tensor* codes;
    TF_RETURN_IF_ERROR(
        context->allocate_output(0, {vectors.dim_size(0), family.num_tables}, &codes));
    const core::LayerWeights rows = {vectors.data(), nullptr, false, vectors.dim_size(0),
                                     vectors.dim_size(1)};
    const int64_t bad = core::HashCodes(family, rows, execution, codes->flat<int32_t>().data());
    if (bad < 0) return absl::OkStatus();
    return InvalidArgument("vectors must be finite; got an infinite or NaN number in row ", bad);
  }

 private:
  const HashFunctions functions_;
};

REGISTER_KERNEL_BUILDER(Name("TfxHashCodes").Device(tf::DEVICE_CPU), HashCodesOp);

}  // namespace
}  // namespace tfx
