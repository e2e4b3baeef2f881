// SPDX-License-Identifier: Apache-2.0

#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace tfx {
namespace {

using tensorflow::shape_inference::DimensionHandle;
using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

absl::Status SelectionShapeFn(InferenceContext* c) {
  const int first = c->num_inputs() - 6;
  ShapeHandle hidden, labels, seed, unused;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(first), 2, &hidden));
  TF_RETURN_IF_ERROR(c->WithRank(c->input(first + 1), 2, &labels));
  TF_RETURN_IF_ERROR(c->WithRank(c->input(first + 2), 1, &seed));
  for (int scalar : {3, 4, 5}) {
    TF_RETURN_IF_ERROR(c->WithRank(c->input(first + scalar), 0, &unused));
  }
  DimensionHandle batch;
  TF_RETURN_IF_ERROR(c->Merge(c->Dim(hidden, 0), c->Dim(labels, 0), &batch));
  c->set_output(0, c->Vector(batch));
  c->set_output(1, c->Matrix(batch, c->Dim(labels, 1)));
  const ShapeHandle by_entry = c->Matrix(batch, c->UnknownDim());
  for (int output : {2, 3, 4, 5}) c->set_output(output, by_entry);
  return absl::OkStatus();
}

absl::Status SoftmaxUpdateShapeFn(InferenceContext* c) {
  const int first = c->num_inputs() - 8;
  ShapeHandle hidden, labels, unused;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(first), 2, &hidden));
  TF_RETURN_IF_ERROR(c->WithRank(c->input(first + 1), 2, &labels));
  TF_RETURN_IF_ERROR(c->WithRank(c->input(first + 2), 1, &unused));
  TF_RETURN_IF_ERROR(c->Merge(c->input(first + 3), labels, &unused));
  TF_RETURN_IF_ERROR(c->WithRank(c->input(first + 4), 1, &unused));
  TF_RETURN_IF_ERROR(c->WithRank(c->input(first + 5), 1, &unused));
  TF_RETURN_IF_ERROR(c->WithRank(c->input(first + 6), 0, &unused));
  TF_RETURN_IF_ERROR(c->WithRank(c->input(first + 7), 1, &unused));
  c->set_output(0, hidden);
  return absl::OkStatus();
}

}  // namespace

REGISTER_OP("TfxSoftmaxSelection")
    .Input("kernel: resource")
    .Input("bias: num_biases * resource")
    .Input("hidden: float")
    .Input("labels: int64")
    .Input("seed: int64")
    .Input("first_class: int64")
    .Input("class_stride: int64")
    .Input("num_classes: int64")
    .Attr("num_biases: int >= 0")
    .Attr("num_selected: int >= 0")
    .Attr("products: {'float32', 'bfloat16'} = 'float32'")
    .Attr("dtype: {float, bfloat16}")
    .Output("logsumexp: float")
    .Output("target_logits: float")
    .Output("ids: int64")
    .Output("probabilities: float")
    .Output("logits: float")
    .Output("keys: float")
    .SetIsStateful()
    .SetShapeFn(SelectionShapeFn)
    .Doc(R"doc(
The partition function of the softmax of o = W h + b over all classes, and a few of its entries.

With p_ic = exp(o_ic) / Z_i, entry (i, c) is kept with probability min(1, S p_ic), and then has the
weight max(p_ic, 1 / S), whose expectation is p_ic. With S = C all are kept, and are p_ic. The choice
is a function of the seed, i and c.

W may have the rows of one shard of a layer: row r is then class first_class + class_stride r, and
arguments other than C are for the whole layer. The partition function and p_ic are over the rows here:
of the entries kept, those with a key above log Z_i - log S, Z_i over all classes, are to remain.

On a GPU values are not checked, and a label out of range counts as a label without a row.

kernel: W, a variable [C, D] of type dtype, C below 2^31.
bias: b, a variable [C] of type dtype, or none.
hidden: h, [B, D], finite.
labels: [B, K] class ids, in [-1, num_classes), padded with -1.
seed: [2].
first_class: [], the class of row 0; 0 for a whole layer.
class_stride: [], at least 1; 1 for a whole layer.
num_classes: [], of the layer; C for a whole one.
num_selected: S, at most num_classes: then all are kept. It bounds the expected number of entries per example. 0: none is kept.
products: their type: with "bfloat16", W and h are rounded to it first. Sums are float32.
logsumexp: [B], log Z.
target_logits: [B, K], o at the labels; 0 at padding, and where a label has no row here.
ids: [B, S'], the classes kept, rising; labels are left out. Padded with -1.
probabilities: [B, S'], their weights; 0 at padding.
logits: [B, S'], o_ic; 0 at padding.
keys: [B, S'], o_ic - log u_ic with a random number u_ic in (0, 1]; 0 at padding.
)doc");

REGISTER_OP("TfxMeanOfRows")
    .Input("variable: resource")
    .Attr("dtype: {float, bfloat16}")
    .Output("mean: float")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      c->set_output(0, c->UnknownShape());
      return absl::OkStatus();
    })
    .Doc(R"doc(
The mean of the rows of a variable, which is read in place, once.

Sums of few rows are floats, sums of many rows doubles. The result does not depend on the number of
threads.

variable: [C, ...] of type dtype, C at least 1.
mean: [...].
)doc");

REGISTER_OP("TfxSoftmaxUpdate")
    .Input("kernel: resource")
    .Input("bias: num_biases * resource")
    .Input("kernel_slots: num_kernel_slots * resource")
    .Input("bias_slots: num_bias_slots * resource")
    .Input("hidden: float")
    .Input("labels: int64")
    .Input("logsumexp: float")
    .Input("target_gradient: float")
    .Input("logsumexp_gradient: float")
    .Input("mean_gradient: float")
    .Input("learning_rate: float")
    .Input("rule: double")
    .Attr("num_biases: int >= 0")
    .Attr("num_kernel_slots: int >= 0")
    .Attr("num_bias_slots: int >= 0")
    .Attr("method: {'sgd', 'adagrad', 'adam'}")
    .Attr("products: {'float32', 'bfloat16'} = 'float32'")
    .Attr("dtype: {float, bfloat16}")
    .Attr("update: bool = true")
    .Output("hidden_gradient: float")
    .SetIsStateful()
    .SetShapeFn(SoftmaxUpdateShapeFn)
    .Doc(R"doc(
Takes a step on all rows by the gradient of a function of log Z, target logits and the mean logit;
returns dL/dh.

With o = W h + b and p_ic = exp(o_ic) / Z_i, dL/do_ic = a_i p_ic + m_i / C + the target gradients of
(i, c). Neither o nor its gradient is built. After an error all variables are unchanged. The result
does not depend on the number of threads. Values of tensors on a GPU are not checked, and a label out of
range counts as padding.

kernel: W, [C, D], of type dtype; changed in place.
bias: b, [C], of type dtype; or none.
kernel_slots: As in TfxRowUpdate, for W.
bias_slots: As in TfxRowUpdate, for b; none without a bias.
hidden: h, [B, D], finite.
labels: [B, K] class ids, padded with -1.
logsumexp: log Z, [B], finite.
target_gradient: [B, K], of the loss with respect to the target logits, finite; ignored at padding.
logsumexp_gradient: a, [B], of the loss with respect to log Z, finite.
mean_gradient: m, [B], of the loss with respect to the mean of all logits, finite; or [0]: 0.
learning_rate: As in TfxRowUpdate.
rule: As in TfxRowUpdate.
method: As in TfxRowUpdate.
products: Their type: with "bfloat16", W, h and dL/do are rounded to it first. Sums are float32.
update: False: computes only the gradient.
hidden_gradient: dL/dh at the W before the step, [B, D].
)doc");

}  // namespace tfx
