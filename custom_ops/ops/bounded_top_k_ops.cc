// SPDX-License-Identifier: Apache-2.0

#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace tfx {
namespace {

namespace tf = tensorflow;
using tf::shape_inference::InferenceContext;
using tf::shape_inference::ShapeHandle;

absl::Status BoundedTopKShape(InferenceContext* c) {
  ShapeHandle hidden, unused;
  int64_t k;
  TF_RETURN_IF_ERROR(c->GetAttr("k", &k));
  TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 2, &hidden));
  TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 1, &unused));
  c->set_output(0, c->Matrix(c->Dim(hidden, 0), k));
  c->set_output(1, c->Matrix(c->Dim(hidden, 0), k));
  c->set_output(2, c->Vector(c->Dim(hidden, 0)));
  return absl::OkStatus();
}

}  // namespace

REGISTER_OP("TfxBoundedTopK")
    .Input("hidden: float")
    .Input("bias: dtype")
    .Input("kernel: resource")
    .Input("rows: resource")
    .Input("scales: resource")
    .Input("errors: resource")
    .Attr("dtype: {float, bfloat16}")
    .Attr("k: int >= 0")
    .Output("top_scores: float")
    .Output("top_ids: int64")
    .Output("num_candidates: int64")
    .SetIsStateful()
    .SetShapeFn(BoundedTopKShape)
    .Doc(R"doc(
The best k of all classes by the logits o = W h + b, bitwise equal to TfxStreamedLogits.

For small batches, W is read only for classes that integer rows and their error bounds can't rule
out. The bounds must be computed from W; otherwise classes may be missing. The variables are read in
place under their shared locks.

hidden: h, [B, D].
bias: b, [C], or [0] for none.
kernel: handle of a variable W of type dtype, [C, D], C below 2^31.
rows: handle of int8 [N, D, 16], N = ceil(C / 16): row c is rows[c / 16, :, c % 16], then 0.
scales: handle of float [N, 16]: a row times its scale approximates the row of W.
errors: handle of float [N, 16], at least 0: a bound of the error of a logit for |h| = 1.
k: number of best classes to return, at most C.
top_scores: [B, k], falling, ties by lower id.
top_ids: [B, k].
num_candidates: [B]: number of classes with a logit from W; C if bounds were not used.
)doc");

REGISTER_OP("TfxProbedTopK")
    .Input("hidden: float")
    .Input("bias: dtype")
    .Input("kernel: resource")
    .Input("rows: resource")
    .Input("scales: resource")
    .Input("errors: resource")
    .Input("classes: resource")
    .Input("centers: resource")
    .Input("offsets: resource")
    .Input("penalties: resource")
    .Input("ends: resource")
    .Attr("dtype: {float, bfloat16}")
    .Attr("k: int >= 0")
    .Attr("num_probed: int >= 1")
    .Output("top_scores: float")
    .Output("top_ids: int64")
    .Output("num_candidates: int64")
    .SetIsStateful()
    .SetShapeFn(BoundedTopKShape)
    .Doc(R"doc(
The best k classes of the lists closest to h, by the logits o = W h + b.

The closeness of list l is <center_l, h> + offset_l - |(h, 1)| penalty_l. If the lists have fewer
than k classes, -infinity and -1 follow. All classes are searched if a logit is out of its bounds, or
ends don't rise. The variables are read in place under their shared locks.

hidden: h, [B, D].
bias: b, [C], or [0] for none.
kernel: handle of a variable W of type dtype, [C, D], C below 2^31.
rows: handle of int8 [N, D, 16], the rows of all lists, one list after the other, in whole blocks.
scales: handle of float [N, 16]: a row times its scale approximates the row of W.
errors: handle of float [N, 16], at least 0: a bound of the error of a logit for |h| = 1.
classes: handle of int32 [N, 16]: the class of each row; -1 for none.
centers: handle of float [ceil(L / 16), D, 16].
offsets: handle of float [ceil(L / 16), 16].
penalties: handle of float [ceil(L / 16), 16].
ends: handle of int32 [L]: the end of each list, in blocks.
k: number of best classes to return, at most C.
num_probed: number of lists searched per example, at most L.
top_scores: [B, k], falling, ties by lower id.
top_ids: [B, k].
num_candidates: [B]: number of classes with a logit from W; C if all were searched.
)doc");

}  // namespace tfx
