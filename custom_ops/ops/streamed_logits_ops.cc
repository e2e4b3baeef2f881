// SPDX-License-Identifier: Apache-2.0

#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace tfx {
namespace {

namespace tf = tensorflow;
using tf::shape_inference::DimensionHandle;
using tf::shape_inference::InferenceContext;
using tf::shape_inference::ShapeHandle;

absl::Status SetOutputs(InferenceContext* c, DimensionHandle width) {
  ShapeHandle hidden, bias, labels;
  DimensionHandle batch, unused;
  int64_t k;
  TF_RETURN_IF_ERROR(c->GetAttr("k", &k));
  TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 2, &hidden));
  TF_RETURN_IF_ERROR(c->Merge(c->Dim(hidden, 1), width, &unused));
  TF_RETURN_IF_ERROR(c->WithRank(c->input(2), 1, &bias));
  TF_RETURN_IF_ERROR(c->WithRank(c->input(3), 2, &labels));
  TF_RETURN_IF_ERROR(c->Merge(c->Dim(hidden, 0), c->Dim(labels, 0), &batch));
  ShapeHandle unused_shape;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(4), 2, &unused_shape));
  for (int scalar : {5, 6, 7}) TF_RETURN_IF_ERROR(c->WithRank(c->input(scalar), 0, &unused_shape));
  const ShapeHandle by_label = c->Matrix(batch, c->Dim(labels, 1));
  c->set_output(0, c->Vector(batch));
  c->set_output(1, by_label);
  c->set_output(2, by_label);
  c->set_output(3, c->Matrix(batch, k));
  c->set_output(4, c->Matrix(batch, k));
  return absl::OkStatus();
}

absl::Status TensorShapeFn(InferenceContext* c) {
  ShapeHandle kernel;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 2, &kernel));
  return SetOutputs(c, c->Dim(kernel, 1));
}

absl::Status ResourceShapeFn(InferenceContext* c) {
  const auto* handle = c->input_handle_shapes_and_types(1);
  if (handle == nullptr || handle->empty()) return SetOutputs(c, c->UnknownDim());
  ShapeHandle kernel;
  TF_RETURN_IF_ERROR(c->WithRank((*handle)[0].shape, 2, &kernel));
  return SetOutputs(c, c->Dim(kernel, 1));
}

absl::Status FilteredShapeFn(InferenceContext* c) {
  ShapeHandle hidden, excluded, unused;
  DimensionHandle batch;
  int64_t k;
  TF_RETURN_IF_ERROR(c->GetAttr("k", &k));
  TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 2, &hidden));
  TF_RETURN_IF_ERROR(c->WithRank(c->input(3), 2, &excluded));
  TF_RETURN_IF_ERROR(c->Merge(c->Dim(hidden, 0), c->Dim(excluded, 0), &batch));
  for (int vector : {2, 4, 5}) TF_RETURN_IF_ERROR(c->WithRank(c->input(vector), 1, &unused));
  for (int scalar : {6, 7, 8}) TF_RETURN_IF_ERROR(c->WithRank(c->input(scalar), 0, &unused));
  c->set_output(0, c->Vector(batch));
  c->set_output(1, c->Matrix(batch, k));
  c->set_output(2, c->Matrix(batch, k));
  return absl::OkStatus();
}

}  // namespace

// The op, with W as a tensor or the handle of a variable.
#define TFX_STREAMED_LOGITS(KERNEL)     \
  Input("hidden: float")                \
      .Input(KERNEL)                    \
      .Input("bias: dtype")             \
      .Input("labels: int64")           \
      .Input("target_scores: float")    \
      .Input("first_class: int64")      \
      .Input("class_stride: int64")     \
      .Input("num_classes: int64")      \
      .Attr("dtype: {float, bfloat16}") \
      .Attr("k: int >= 0")              \
      .Output("logsumexp: float")       \
      .Output("target_logits: float")   \
      .Output("target_ranks: int64")    \
      .Output("top_scores: float")      \
      .Output("top_ids: int64")

REGISTER_OP("TfxStreamedLogits")
    .TFX_STREAMED_LOGITS("kernel: dtype")
    .SetShapeFn(TensorShapeFn)
    .Doc(R"doc(
Statistics of the logits o = W h + b of all classes, in one pass, without building them.

The result does not depend on the number of threads. The logsumexp is NaN if a logit of the example
is NaN, else +infinity if a logit is; -infinity if all logits are, or if there is no class. For ranks
and the best k, a NaN logit counts as -infinity.

hidden: h, [B, D].
W may have the rows of one shard of a layer: row r is then class first_class + class_stride r. Classes
are counted and named by their ids in the layer.

kernel: W, [C, D], C below 2^31.
bias: b, [C], or [0] for none.
labels: [B, K] class ids, in [-1, num_classes), padded with -1.
target_scores: The labels' logits, [B, K], of any shard; or [0, 0]: the logits computed here.
first_class: [], the class of row 0; 0 for a whole layer.
class_stride: [], at least 1; 1 for a whole layer.
num_classes: [], of the layer; C for a whole one.
k: number of best classes to return, at most C.
logsumexp: [B].
target_logits: [B, K]; 0 where the label is -1, or has no row here.
target_ranks: [B, K]: number of classes here with a higher logit, or the same logit and a lower id; -1
  if the label is -1 or its logit is unknown. With scores, ranks of shards add up: a label never counts
  as above itself, for any rounding of its score.
top_scores: [B, k], falling, ties by lower id.
top_ids: [B, k].
)doc");

REGISTER_OP("TfxResourceStreamedLogits")
    .TFX_STREAMED_LOGITS("kernel: resource")
    .SetIsStateful()
    .SetShapeFn(ResourceShapeFn)
    .Doc(R"doc(
TfxStreamedLogits of a variable, which is read in place under its shared lock and never copied.

kernel: handle of a variable W of type dtype, [C, D].
)doc");

#undef TFX_STREAMED_LOGITS

REGISTER_OP("TfxFilteredTopK")
    .Input("hidden: float")
    .Input("kernel: resource")
    .Input("bias: dtype")
    .Input("excluded: int64")
    .Input("groups: int32")
    .Input("wanted: int32")
    .Input("first_class: int64")
    .Input("class_stride: int64")
    .Input("num_classes: int64")
    .Attr("dtype: {float, bfloat16}")
    .Attr("k: int >= 0")
    .Output("logsumexp: float")
    .Output("top_scores: float")
    .Output("top_ids: int64")
    .SetIsStateful()
    .SetShapeFn(FilteredShapeFn)
    .Doc(R"doc(
The logsumexp of TfxResourceStreamedLogits, and the best k of the classes that each example may find.

An example may find the classes of its wanted group that it does not exclude. If there are fewer than k,
-infinity and -1 follow. The logsumexp is over all classes.

hidden: h, [B, D].
kernel: handle of a variable W of type dtype, [C, D], C below 2^31.
bias: b, [C], or [0] for none.
excluded: [B, E] class ids, in [-1, num_classes), padded with -1.
groups: the group of each row, [C], -1 for rows that are never found; or [0]: all may be found.
wanted: [B], the group, -1 for any; or [0] without groups.
first_class: [], as in TfxStreamedLogits.
class_stride: [], as in TfxStreamedLogits.
num_classes: [], as in TfxStreamedLogits.
k: number of best classes to return, at most C.
logsumexp: [B].
top_scores: [B, k], falling, ties by lower id.
top_ids: [B, k].
)doc");

}  // namespace tfx
