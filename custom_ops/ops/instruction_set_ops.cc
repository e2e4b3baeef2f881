// SPDX-License-Identifier: Apache-2.0

#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"

namespace tfx {

REGISTER_OP("TfxInstructionSet")
    .Output("name: string")
    .SetIsStateful()  // it reads the environment: must not be folded into a constant
    .SetShapeFn(tensorflow::shape_inference::ScalarShape)
    .Doc(R"doc(
Names the instruction set that the hot loops use.

name: "baseline", "avx2", "avx512" or "avx512_bf16".
)doc");

}  // namespace tfx
