// SPDX-License-Identifier: Apache-2.0

#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace tfx {

using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

REGISTER_OP("TfxMultiIndexDraws")
    .Input("first: double")
    .Input("second: double")
    .Input("codes: int32")
    .Input("entries: int32")
    .Input("starts: int32")
    .Input("sums: int64")
    .Input("uniform: double")
    .Output("ids: int64")
    .Output("log_probability: double")
    .SetShapeFn([](InferenceContext* c) {
      ShapeHandle uniform;
      TF_RETURN_IF_ERROR(c->WithRank(c->input(6), 3, &uniform));
      for (int i = 0; i < 2; ++i) {
        c->set_output(i, c->Matrix(c->Dim(uniform, 0), c->Dim(uniform, 1)));
      }
      return absl::OkStatus();
    })
    .Doc(R"doc(
Draws classes from the softmax over classes that are coded by pairs of words, with replacement.

q(c) = w_c exp(first[k1] + second[k2]) / Z; class c has the code k1 Q + k2 and the weight w_c.

first: [B, Q].
second: [B, Q].
codes: [C], the pair of each class.
entries: [C], the classes of pair 0, of pair 1 and so on.
starts: [Q^2 + 1], the first entry of each pair.
sums: [C + 1], the sum of the weights of all entries before each, beginning with 0.
uniform: [B, S, 3], in [0, 1): for k1, k2 and the class of each draw.
ids: [B, S]; -1 unless Z > 0.
log_probability: [B, S], log q of the class; 0 for id -1.
)doc");

}  // namespace tfx
