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

After an error all variables are unchanged.

variable: W of type dtype, [C, D] or [C] or of higher rank.
slots: SGD: none or the momentum. Adagrad: the accumulator. Adam: m, v and the age of each row. The age
  is [C] uint32; others are floats of W's shape or, by options, bfloat16 or one number per row, [C].
  Compensated rounding adds the errors of W, bfloat16 of its shape.
ids: [n], in [0, C), without repeats.
gradient: [n, D], finite.
learning_rate: eta, [], finite, at least 0.
rule: weight_decay, clip_norm (above all floats: none), and the method's hyperparameters: momentum and
  whether it is Nesterov's; epsilon; beta_1, beta_2 and epsilon. Nine options may follow, which raise
  an error on a GPU. Whether rows keep norm 1: g is made tangent to the sphere first, and rows are
  divided by their norms last. Whether the accumulator, or v, is one number per row, the mean of g^2.
  Whether the momentum, m and v are bfloat16, rounded at random. The rounding of W: 0, to nearest; 1, at
  random, without bias; 2, to nearest, with the error kept in a slot and added in the next step. The
  rest, and the column, determine the random bits: the seed, the step, the number of the variable (of a
  bias, 1 more), the class of row 0, and the stride from row to row.
method: The rule of the step.
)doc");

}  // namespace tfx
