// SPDX-License-Identifier: Apache-2.0

#include <cstdint>

#include "core/hash_family.h"
#include "kernels/cpu_op.h"
#include "kernels/hash_arguments.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tfx {
namespace {

namespace tf = tensorflow;

class HashCodesOp : public CpuOp {
 public:
  explicit HashCodesOp(tf::OpKernelConstruction* context) : CpuOp(context), functions_(context) {}

 protected:
  absl::Status Run(tf::OpKernelContext* context, core::Execution execution) const override {
    const tf::Tensor& vectors = context->input(0);
    TF_RETURN_IF_ERROR(CheckVectors(vectors));
    core::HashFamily family;
    TF_RETURN_IF_ERROR(
        functions_.Get(context->input(1), context->input(2), vectors.dim_size(1), &family));
    TF_RETURN_IF_ERROR(CheckElements(family));
    tf::Tensor* codes;
    TF_RETURN_IF_ERROR(
        context->allocate_output(0, {vectors.dim_size(0), family.num_tables}, &codes));
    const core::LayerWeights rows = {vectors.data(), nullptr, false, vectors.dim_size(0),
                                     vectors.dim_size(1)};
    const int64_t bad = core::HashCodes(family, rows, execution, codes->flat<int32_t>().data());
    return bad < 0 ? absl::OkStatus() : VectorError(bad);
  }

 private:
  const HashFunctions functions_;
};

REGISTER_KERNEL_BUILDER(Name("TfxHashCodes").Device(tf::DEVICE_CPU), HashCodesOp);

}  // namespace
}  // namespace tfx
