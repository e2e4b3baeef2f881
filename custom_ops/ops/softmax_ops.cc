// SPDX-License-Identifier: Apache-2.0

#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace tfx {
namespace {

using tensorflow::shape_inference::DimensionHandle;
using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

absl::Status SelectionShapeFn(InferenceContext* c) {
  const int first = c->num_inputs() - 3;
  ShapeHandle hidden, labels, seed;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(first), 2, &hidden));
  TF_RETURN_IF_ERROR(c->WithRank(c->input(first + 1), 2, &labels));
  TF_RETURN_IF_ERROR(c->WithRank(c->input(first + 2), 1, &seed));
  DimensionHandle batch;
  TF_RETURN_IF_ERROR(c->Merge(c->Dim(hidden, 0), c->Dim(labels, 0), &batch));
  c->set_output(0, c->Vector(batch));
  c->set_output(1, c->Matrix(batch, c->Dim(labels, 1)));
  c->set_output(2, c->Matrix(batch, c->UnknownDim()));
  c->set_output(3, c->Matrix(batch, c->UnknownDim()));
  return absl::OkStatus();
}

}  // namespace

REGISTER_OP("TfxSoftmaxSelection")
    .Input("kernel: resource")
    .Input("bias: num_biases * resource")
    .Input("hidden: float")
    .Input("labels: int64")
    .Input("seed: int64")
    .Attr("num_biases: int >= 0")
    .Attr("num_selected: int >= 1")
    .Attr("products: {'float32', 'bfloat16'} = 'float32'")
    .Attr("dtype: {float, bfloat16}")
    .Output("logsumexp: float")
    .Output("target_logits: float")
    .Output("ids: int64")
    .Output("probabilities: float")
    .SetIsStateful()
    .SetShapeFn(SelectionShapeFn)
    .Doc(R"doc(
The partition function of the softmax of o = W h + b over all classes, and a few of its entries.

With p_ic = exp(o_ic) / Z_i, entry (i, c) is kept with probability min(1, S p_ic), and then has the
weight max(p_ic, 1 / S), whose expectation is p_ic. With S = C all are kept, and are p_ic. The choice
is a function of the seed, i and c.

kernel: W, a variable [C, D] of type dtype, C below 2^31.
bias: b, a variable [C] of type dtype, or none.
hidden: h, [B, D], finite.
labels: [B, K] class ids, padded with -1.
seed: [2].
num_selected: S, at most C: at most so many entries of an example are expected.
products: of what: with "bfloat16", W and h are rounded to it first. Sums are float32.
logsumexp: [B], log Z.
target_logits: [B, K], o at the labels; 0 at padding.
ids: [B, S'], the classes kept, rising; labels are left out. Padded with -1.
probabilities: [B, S'], their weights; 0 at padding.
)doc");

}  // namespace tfx
