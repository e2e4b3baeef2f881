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
  [C] uint32; the others are floats of W's shape. By the options a number a row, [C], or bfloat16; last,
  of compensated rounding, the errors of W, bfloat16 of its shape.
ids: [n], in [0, C), without repeats.
gradient: [n, D], finite.
learning_rate: eta, [], finite, at least 0.
rule: weight_decay, clip_norm (infinity: none), and the method's hyperparameters: momentum and whether
  it is Nesterov's; epsilon; beta_1, beta_2 and epsilon. Behind them there may be nine options, which are
  refused on a GPU. Whether rows have norm 1 and are kept at it: g is made tangent to the sphere first,
  and rows are divided by their norms last. Whether the accumulator, or v, is one number a row, of the
  mean of g^2. Whether the momentum, m and v are bfloat16, and rounded at random. How W is rounded: 0, to
  the nearest; 1, at random, without bias; 2, to the nearest, and what that leaves is in a slot and added
  again. What the random bits depend on, besides the column: the seed, the step, the variable (of a bias,
  1 more), and the class, of row 0 and from row to row.
method: What to do with a row.
)doc");

}  // namespace tfx
