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
Computes the codes of vectors for each of L hash tables, from K hashes per table.

vectors: [n, D], finite.
elements: [H, window], in [0, D): winner-take-all, hash j is the place of the largest of the
  coordinates elements[j]. [0, 0]: planes are used.
planes: [H, D]: hash j is whether <planes[j], x> > 0. [0, 0]: elements are used.
codes: [n, L]: for each table the number whose digits are the table's hashes, lowest digit first, in
  base `window` or 2; -1 for no code.
num_tables: L.
hashes_per_table: K; H is at least K L.
bins: The number of successive hashes that read the parts of one permutation; a hash that finds only
  zeros takes the value of the nearest of them, in a ring, that does not. With 1, it is 0.
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
Marks rows of W as changed, and updates some tables with all changed rows.

After an error all variables are unchanged. If a changed row is not finite or a table is corrupt, the
marks are kept, for a later call. A corrupt table raises an error unless all rows have changed.

entries: [L, C], the classes of each table by bucket, then -1. This and the next three are of uint32
  and hold int32: -1 as 2^32 - 1.
starts: [L, buckets + 1], the first entry of each bucket.
touched_at: [C], the time when each row was last marked.
built_at: [L], the time when each table was last updated; -1, or an impossible time: never.
kernel: W [C, D] of type dtype; is read.
bias: At most one, b [C] of type dtype; is read if there are radii.
elements: As in TfxHashCodes.
planes: As in TfxHashCodes.
touched: [n], rows to mark, in [-1, C); -1 is skipped.
now: [], the time of this call, at least 0.
tables: [2], the first table to update, and the end of the range.
radii: [m], falling. Empty: rows w are hashed. Else (w, b, sqrt(max(0, R^2 - |w|^2 - b^2))) is hashed,
  with R the smallest radius that is at least |(w, b)|, or the largest; a table has the same number of
  buckets for each radius, starting with the largest.
moved: [], number of classes that changed their bucket, over these tables.
num_biases: 0 or 1.
num_tables: As in TfxHashCodes.
hashes_per_table: As in TfxHashCodes.
bins: As in TfxHashCodes.
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

entries: [L, C] uint32, as in TfxHashIndexUpdate.
starts: [L, buckets + 1] uint32.
codes: [N, Q, L], N below 2^31, codes of each example's Q queries, in the first range; -1 for none.
order: [L], a permutation: the order in which tables are visited.
rotations: [L], in [0, 2^32): a bucket is read from this fraction of it on, as a ring.
first_class: [], in [0, C): the class that is first among ties.
budget: [], S, in [1, C].
ids: With `own`, [N, S]: the first different classes found, range by range, table by table and query
  by query. Else [S]: the classes found most often, over all examples, in rising order; of ties those
  that follow `first_class`. Padded with -1.
marks: [0] without `gives_marks`. With `own`, [N, S]: the turn in which each class was found: the number
  of the range times L plus the place of the table in the order; padded with the number of turns. Else
  [S]: how often each class was found; padded with 0.
own: Whether candidates are per example.
most_of_bucket: The largest number of classes that are read from a bucket.
num_ranges: The number of ranges of the buckets of a table; a query reads a bucket in each.
)doc");

}  // namespace tfx
