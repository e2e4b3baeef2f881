// SPDX-License-Identifier: Apache-2.0

#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace tfx {

using tensorflow::shape_inference::DimensionHandle;
using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

REGISTER_OP("TfxHashCodes")
    .Input("vectors: float")
    .Input("elements: int32")
    .Input("planes: float")
    .Output("codes: int32")
    .Attr("num_tables: int >= 1")
    .Attr("hashes_per_table: int >= 1")
    .Attr("bins: int >= 1 = 1")
    .SetShapeFn([](InferenceContext* c) {
      ShapeHandle vectors;
      TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 2, &vectors));
      int64_t num_tables;
      TF_RETURN_IF_ERROR(c->GetAttr("num_tables", &num_tables));
      c->set_output(0, c->Matrix(c->Dim(vectors, 0), num_tables));
      return absl::OkStatus();
    })
    .Doc(R"doc(
Computes the codes of vectors for each of L hash tables, from K hashes a table.

vectors: [n, D], finite.
elements: [H, window], in [0, D): winner-take-all, hash j is the place of the greatest of the
  coordinates elements[j]. [0, 0]: by planes.
planes: [H, D]: hash j is whether <planes[j], x> > 0. [0, 0]: by elements.
codes: [n, L]: of each table, the number whose digits are the table's hashes, the first one the lowest,
  to the base `window` or 2; -1 where there is none.
num_tables: L.
hashes_per_table: K; H is at least K L.
bins: How many hashes in a row look at the parts of one permutation; a hash that finds only zeros then
  takes the value of its nearest neighbour in the circle of these that does not. With 1, it is 0.
)doc");

REGISTER_OP("TfxHashIndexUpdate")
    .Input("entries: resource")
    .Input("starts: resource")
    .Input("touched_at: resource")
    .Input("built_at: resource")
    .Input("kernel: resource")
    .Input("bias: num_biases * resource")
    .Input("elements: int32")
    .Input("planes: float")
    .Input("touched: int64")
    .Input("now: int32")
    .Input("tables: int64")
    .Input("radii: float")
    .Output("moved: int64")
    .Attr("num_biases: int >= 0 = 0")
    .Attr("num_tables: int >= 1")
    .Attr("hashes_per_table: int >= 1")
    .Attr("bins: int >= 1 = 1")
    .Attr("dtype: {float, bfloat16}")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      c->set_output(0, c->Scalar());
      return absl::OkStatus();
    })
    .Doc(R"doc(
Marks rows of W as changed, and brings some tables up to date with all changed rows.

What is refused leaves all variables as they were, but for the marks where a row that has changed is
not finite or a table is corrupt: W has changed, and a later call is to see it. A corrupt table is refused unless all rows have changed.

entries: [L, C], the classes of each table by bucket, then -1. This and the next three are of uint32
  and hold int32: -1 as 2^32 - 1.
starts: [L, buckets + 1], where each bucket begins.
touched_at: [C], when each row was last marked.
built_at: [L], when each table was last brought up to date; -1, or a time that can't be: never.
kernel: W [C, D] of type dtype; is read.
bias: At most one, b [C] of type dtype; is read where there are radii.
elements: As TfxHashCodes.
planes: As TfxHashCodes.
touched: [n], rows to mark, in [-1, C); -1 is skipped.
now: [], the time of this call, at least 0.
tables: [2], the first table to bring up to date, and the one behind the last.
radii: [m], falling. Empty: rows are hashed as they are. Else as (w, b, sqrt(max(0, R^2 - |w|^2 - b^2))),
  R being the smallest radius that is at least |(w, b)|, or the greatest; a table has as many buckets for
  each radius, those for the greatest one first.
moved: [], how many classes changed their bucket, over these tables.
num_biases: 0 or 1.
num_tables: As TfxHashCodes.
hashes_per_table: As TfxHashCodes.
bins: As TfxHashCodes.
)doc");

REGISTER_OP("TfxBucketCandidates")
    .Input("entries: resource")
    .Input("starts: resource")
    .Input("codes: int32")
    .Input("order: int32")
    .Input("rotations: int64")
    .Input("first_class: int64")
    .Input("budget: int64")
    .Output("ids: int64")
    .Output("marks: int64")
    .Attr("own: bool")
    .Attr("gives_marks: bool")
    .Attr("most_of_bucket: int >= 1")
    .Attr("num_ranges: int >= 1 = 1")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      ShapeHandle codes;
      TF_RETURN_IF_ERROR(c->WithRank(c->input(2), 3, &codes));
      DimensionHandle budget;
      TF_RETURN_IF_ERROR(c->MakeDimForScalarInput(6, &budget));
      bool own;
      TF_RETURN_IF_ERROR(c->GetAttr("own", &own));
      const ShapeHandle shape = own ? c->Matrix(c->Dim(codes, 0), budget) : c->Vector(budget);
      c->set_output(0, shape);
      bool gives_marks;
      TF_RETURN_IF_ERROR(c->GetAttr("gives_marks", &gives_marks));
      c->set_output(1, gives_marks ? shape : c->Vector(0));
      return absl::OkStatus();
    })
    .Doc(R"doc(
Collects candidate classes from the buckets that queries fall into.

entries: [L, C] uint32, as TfxHashIndexUpdate.
starts: [L, buckets + 1] uint32.
codes: [N, Q, L] with N below 2^31, those of an example's queries, in the first range; -1 where there is none.
order: [L], a permutation: the order in which tables are visited.
rotations: [L], in [0, 2^32): a bucket is read from this part of it on, in a circle.
first_class: [], in [0, C): who is first among equals.
budget: [], S, in [1, C].
ids: With `own`, [N, S]: the first different classes that come up, range by range, table by table and
  query by query.
  Else [S]: the classes that come up most often, over all examples, in rising order; among equals those
  that follow `first_class`. -1 where there are no more.
marks: [0] without `gives_marks`. With `own`, [N, S]: the turn in which each came up, the number of the range times L plus the place
  of the table in the order; as many as there are turns where there are no more. Else [S]: how often
  each came up; 0 where there are no more.
own: Whether each example gets candidates of its own.
most_of_bucket: How many classes of a bucket are read at most.
num_ranges: Into how many ranges the buckets of a table are divided; a query looks into each.
)doc");

}  // namespace tfx
