// SPDX-License-Identifier: Apache-2.0

#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace tfx {

using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

REGISTER_OP("TfxRowUpdate")
    .Input("variable: resource")
    .Input("slots: num_slots * resource")
    .Input("ids: int64")
    .Input("gradient: float")
    .Input("learning_rate: float")
    .Input("rule: double")
    .Attr("num_slots: int >= 0")
    .Attr("method: {'sgd', 'adagrad', 'adam'}")
    .Attr("dtype: {float, bfloat16}")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      ShapeHandle unused;
      const int ids = c->num_inputs() - 4;
      TF_RETURN_IF_ERROR(c->WithRank(c->input(ids), 1, &unused));
      TF_RETURN_IF_ERROR(c->WithRankAtLeast(c->input(ids + 1), 1, &unused));
      TF_RETURN_IF_ERROR(c->WithRank(c->input(ids + 2), 0, &unused));
      return c->WithRank(c->input(ids + 3), 1, &unused);
    })
    .Doc(R"doc(
Takes a step of SGD, Adagrad or Adam on some rows of a variable, in place.

What is refused leaves all variables as they were.

variable: W of type dtype, [C, D] or [C] or of higher rank.
slots: Of the method: none or the momentum; the accumulator; m, v and the age of each row. The age is
  [C] uint32; the others are floats of W's shape.
ids: [n], in [0, C), without repeats.
gradient: [n, D], finite.
learning_rate: eta, [], finite, at least 0.
rule: weight_decay, clip_norm (infinity: none), and the method's hyperparameters: momentum and whether
  it is Nesterov's; epsilon; beta_1, beta_2 and epsilon. One more, 1, says that rows have norm 1 and are
  kept at it: g is made tangent to the sphere first, and rows are divided by their norms last. On a GPU
  that is refused.
method: What to do with a row.
)doc");

}  // namespace tfx
