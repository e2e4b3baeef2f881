// SPDX-License-Identifier: Apache-2.0

#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace tfx {
namespace {

namespace tf = tensorflow;
using tf::shape_inference::DimensionHandle;
using tf::shape_inference::InferenceContext;
using tf::shape_inference::ShapeHandle;

constexpr int kHidden = 10;  // after the variables
constexpr int kLabels = 11;

absl::Status GetBatch(InferenceContext* c, ShapeHandle* hidden, ShapeHandle* labels,
                      DimensionHandle* batch) {
  TF_RETURN_IF_ERROR(c->WithRank(c->input(kHidden), 2, hidden));
  TF_RETURN_IF_ERROR(c->WithRank(c->input(kLabels), 2, labels));
  return c->Merge(c->Dim(*hidden, 0), c->Dim(*labels, 0), batch);
}

absl::Status StatisticsShapeFn(InferenceContext* c) {
  ShapeHandle hidden, labels;
  DimensionHandle batch;
  TF_RETURN_IF_ERROR(GetBatch(c, &hidden, &labels, &batch));
  const ShapeHandle by_width = c->Matrix(batch, c->Dim(hidden, 1));
  c->set_output(0, c->Matrix(batch, c->Dim(labels, 1)));
  c->set_output(1, c->Vector(batch));
  c->set_output(2, c->Vector(batch));
  c->set_output(3, by_width);
  c->set_output(4, by_width);
  return absl::OkStatus();
}

absl::Status FactoredUpdateShapeFn(InferenceContext* c) {
  ShapeHandle hidden, labels, unused;
  DimensionHandle batch;
  TF_RETURN_IF_ERROR(GetBatch(c, &hidden, &labels, &batch));
  for (int scalar : {kLabels + 6, kLabels + 7}) {
    TF_RETURN_IF_ERROR(c->WithRank(c->input(scalar), 0, &unused));
  }
  c->set_output(0, c->Matrix(batch, c->Dim(hidden, 1)));
  return absl::OkStatus();
}

absl::Status NoOutputsShapeFn(InferenceContext*) { return absl::OkStatus(); }

}  // namespace

#define TFX_FACTORED_STATE                    \
  Input("v: resource")                        \
      .Input("u: resource")                   \
      .Input("u_inverse_transpose: resource") \
      .Input("gram: resource")                \
      .Input("shift: resource")               \
      .Input("row_sum: resource")             \
      .Input("transitions: resource")         \
      .Input("row_slot: resource")            \
      .Input("slot_rows: resource")           \
      .Input("current_slot: resource")

REGISTER_OP("TfxFactoredStatistics")
    .TFX_FACTORED_STATE.Input("hidden: dtype")
    .Input("labels: int64")
    .Attr("dtype: {float, double}")
    .Attr("update_rows: bool = true")
    .Output("target_logits: dtype")
    .Output("sum_of_squares: dtype")
    .Output("sum: dtype")
    .Output("gram_hidden: dtype")
    .Output("u_hidden: dtype")
    .SetIsStateful()
    .SetShapeFn(StatisticsShapeFn)
    .Doc(R"doc(
Statistics of the logits o = W h of a factored layer, W[r] = V[r] transitions[row_slot[r]] U + w.

The result does not depend on the number of threads.

v: V, [C, D]. All floats of the state have the type dtype.
u: U, [D, D].
u_inverse_transpose: P = U^-T, [D, D].
gram: Q = W^T W, [D, D], symmetric.
shift: w, [D].
row_sum: c = W^T 1, [D].
transitions: [slots, D, D]: matrices from each slot to the current coordinates; I for the current slot.
row_slot: [C] uint8.
slot_rows: [slots] int64: number of rows per slot.
current_slot: [] int64.
hidden: H, [B, D], finite.
labels: [B, K] class ids, padded with -1.
update_rows: Whether stale target rows are written back in the current coordinates.
target_logits: [B, K]; 0 where the label is -1.
sum_of_squares: q, [B].
sum: s, [B].
gram_hidden: H Q, [B, D].
u_hidden: H U^T, [B, D].
)doc");

REGISTER_OP("TfxFactoredUpdate")
    .TFX_FACTORED_STATE.Input("hidden: dtype")
    .Input("labels: int64")
    .Input("gram_hidden: dtype")
    .Input("u_hidden: dtype")
    .Input("g_target: dtype")
    .Input("g_squares: dtype")
    .Input("g_sum: dtype")
    .Input("learning_rate: dtype")
    .Input("weight_decay: dtype")
    .Attr("dtype: {float, double}")
    .Attr("update: bool = true")
    .Attr("max_condition: float")
    .Output("hidden_gradient: dtype")
    .SetIsStateful()
    .SetShapeFn(FactoredUpdateShapeFn)
    .Doc(R"doc(
The exact SGD step W <- (1 - eta lambda) W - eta dL/dW on a factored layer, and dL/dH.

After an error the state is unchanged. The result does not depend on the number of threads.

gram_hidden: H Q, [B, D], of the present state.
u_hidden: H U^T, [B, D], of the present state.
g_target: dL/da, [B, K], finite; ignored where the label is -1.
g_squares: dL/dq, [B], finite.
g_sum: dL/ds, [B], finite.
learning_rate: eta, at least 0 and finite; 2 eta lambda_max(H^T diag(g_squares) H) is at most 2.
weight_decay: lambda, with 0 <= eta lambda < 1.
update: False: computes only the gradient; the state does not change.
max_condition: V gets a new anchor when |U| |P| / D is above this; infinity: only if the step itself
  needs one.
hidden_gradient: [B, D].
)doc");

REGISTER_OP("TfxFactoredSettle")
    .TFX_FACTORED_STATE.Attr("dtype: {float, double}")
    .SetIsStateful()
    .SetShapeFn(NoOutputsShapeFn)
    .Doc(R"doc(
Converts every row of V to the current coordinates. W does not change.

Raises an error for any wrong entry of row_slot or slot_rows: O(C).
)doc");

REGISTER_OP("TfxPhaseSeconds")
    .Input("record: bool")
    .Output("names: string")
    .Output("seconds: double")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      c->set_output(0, c->Vector(c->UnknownDim()));
      c->set_output(1, c->Vector(c->UnknownDim()));
      return absl::OkStatus();
    })
    .Doc(R"doc(
Wall time by phase of the ops above, for benchmarks, recorded in this process since the last call.

record: [] whether to record from now on; off at first.
names: [n].
seconds: [n].
)doc");

#undef TFX_FACTORED_STATE

}  // namespace tfx
