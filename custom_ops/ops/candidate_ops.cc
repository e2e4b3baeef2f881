// SPDX-License-Identifier: Apache-2.0

#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace tfx {
namespace {

using tensorflow::shape_inference::DimensionHandle;
using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

// Gets N, K and S, where hidden is input `first`, followed by labels and candidates.
absl::Status GetSizes(InferenceContext* c, int first, DimensionHandle* batch,
                      DimensionHandle* num_labels, DimensionHandle* num_candidates) {
  ShapeHandle hidden, labels, candidates;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(first), 2, &hidden));
  TF_RETURN_IF_ERROR(c->WithRank(c->input(first + 1), 2, &labels));
  TF_RETURN_IF_ERROR(c->WithRankAtLeast(c->input(first + 2), 1, &candidates));
  TF_RETURN_IF_ERROR(c->WithRankAtMost(candidates, 2, &candidates));
  *batch = c->Dim(hidden, 0);
  *num_labels = c->Dim(labels, 1);
  *num_candidates = c->RankKnown(candidates) ? c->Dim(candidates, -1) : c->UnknownDim();
  return absl::OkStatus();
}

absl::Status LogitsShapeFn(InferenceContext* c) {
  DimensionHandle batch, num_labels, num_candidates;
  TF_RETURN_IF_ERROR(GetSizes(c, c->num_inputs() - 3, &batch, &num_labels, &num_candidates));
  c->set_output(0, c->Matrix(batch, num_labels));
  c->set_output(1, c->Matrix(batch, num_candidates));
  c->set_output(2, c->Matrix(batch, num_candidates));
  return absl::OkStatus();
}

absl::Status CandidateUpdateShapeFn(InferenceContext* c) {
  DimensionHandle batch, num_labels, num_candidates;
  const int hidden = c->num_inputs() - 7;
  TF_RETURN_IF_ERROR(GetSizes(c, hidden, &batch, &num_labels, &num_candidates));
  ShapeHandle unused;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(hidden + 3), 2, &unused));
  TF_RETURN_IF_ERROR(c->WithRank(c->input(hidden + 4), 2, &unused));
  TF_RETURN_IF_ERROR(c->WithRank(c->input(hidden + 5), 0, &unused));
  TF_RETURN_IF_ERROR(c->WithRank(c->input(hidden + 6), 1, &unused));
  bool gradient;
  TF_RETURN_IF_ERROR(c->GetAttr("gradient", &gradient));
  c->set_output(0, gradient ? c->input(hidden) : c->Matrix(0, c->Dim(c->input(hidden), 1)));
  return absl::OkStatus();
}

}  // namespace

REGISTER_OP("TfxCandidateLogits")
    .Input("kernel: resource")
    .Input("bias: num_biases * resource")
    .Input("hidden: float")
    .Input("labels: int64")
    .Input("candidates: int64")
    .Attr("num_biases: int >= 0")
    .Attr("dtype: {float, bfloat16}")
    .Output("true_logits: float")
    .Output("candidate_logits: float")
    .Output("hits: bool")
    .SetIsStateful()
    .SetShapeFn(LogitsShapeFn)
    .Doc(R"doc(
Logits o = W h + b of labels and candidate classes, from their rows of W only.

The result does not depend on the number of threads. On a GPU values are not checked, and an id out
of range counts as padding.

kernel: W, [C, D], of type dtype. Read in place.
bias: b, [C], of type dtype; or none.
hidden: h, [N, D], finite.
labels: [N, K] class ids, padded with -1.
candidates: class ids for all examples, [S], or per example, [N, S]; padded with -1.
true_logits: [N, K]; 0 where the label is -1.
candidate_logits: [N, S]; 0 where the candidate is -1.
hits: [N, S]: whether the candidate is a label of the example.
)doc");

REGISTER_OP("TfxCandidateUpdate")
    .Input("kernel: resource")
    .Input("bias: num_biases * resource")
    .Input("kernel_slots: num_kernel_slots * resource")
    .Input("bias_slots: num_bias_slots * resource")
    .Input("hidden: float")
    .Input("labels: int64")
    .Input("candidates: int64")
    .Input("true_gradient: float")
    .Input("candidate_gradient: float")
    .Input("learning_rate: float")
    .Input("rule: double")
    .Attr("num_biases: int >= 0")
    .Attr("num_kernel_slots: int >= 0")
    .Attr("num_bias_slots: int >= 0")
    .Attr("method: {'sgd', 'adagrad', 'adam'}")
    .Attr("dtype: {float, bfloat16}")
    .Attr("update: bool = true")
    .Attr("gradient: bool = true")
    .Output("hidden_gradient: float")
    .SetIsStateful()
    .SetShapeFn(CandidateUpdateShapeFn)
    .Doc(R"doc(
Takes a step on the rows of labels and candidates, and returns dL/dh.

A class that occurs several times gets one step, with the sum of its gradients. After an error all
variables are unchanged. The result does not depend on the number of threads. Values of tensors on a
GPU are not checked, and an id out of range counts as padding.

kernel: W, [C, D], of type dtype; changed in place.
bias: b, [C], of type dtype; or none.
kernel_slots: As in TfxRowUpdate, for W.
bias_slots: As in TfxRowUpdate, for b; none without a bias.
hidden: h, [N, D], finite.
labels: [N, K] class ids, padded with -1.
candidates: class ids for all examples, [S], or per example, [N, S]; padded with -1.
true_gradient: [N, K], of the loss with respect to the labels' logits, finite; ignored at padding.
candidate_gradient: [N, S], the same for the candidates.
learning_rate: As in TfxRowUpdate.
rule: As in TfxRowUpdate.
method: As in TfxRowUpdate.
update: False: computes only the gradient.
gradient: False: takes only the step.
hidden_gradient: dL/dh at the W before the step, [N, D]; [0, D] without `gradient`.
)doc");

}  // namespace tfx
