# SPDX-License-Identifier: Apache-2.0
"""Candidate classes from the buckets of hash tables."""

from __future__ import annotations

from typing import Any, NamedTuple

import tensorflow as tf

from tfx_largeout.ops.bucket_candidates_composed import bucket_candidates_composed
from tfx_largeout.ops.hash_tables import HashTables
from tfx_largeout.ops.implementation import op_module
from tfx_largeout.ops.row_update import check_dtypes


class BucketOrder(NamedTuple):
    """The chance in a visit of buckets.

    Attributes:
        tables: `[L]` int32, a permutation: the order in which tables are visited.
        rotations: `[L]` int64, in [0, 2^32): the part of a bucket, times 2^32, where reading
            begins.
        fill: `[F]` int64, classes that follow those that were found.
        first_class: `[]` int64: among classes with equally many votes, those go first that come
            first from here on, in a circle.
    """

    tables: tf.Tensor
    rotations: tf.Tensor
    fill: tf.Tensor
    first_class: tf.Tensor

    @classmethod
    def draw(cls, num_tables: int, num_classes: int, fill: int, seed: tf.Tensor) -> BucketOrder:
        """Draws all of them, with `fill` classes to follow."""
        seeds = tf.random.split(seed, 4)
        return cls(
            tf.random.experimental.stateless_shuffle(tf.range(num_tables), seeds[0]),
            _integers([num_tables], 2**32, seeds[1]),
            _integers([fill], num_classes, seeds[2]),
            _integers([], num_classes, seeds[3]),
        )


class BucketCandidates(NamedTuple):
    """Candidates, those from buckets first.

    Attributes:
        ids: `[N, S]` or `[S]` int64, without repeats; -1 where there are no more.
        found: `[N]` or `[]` int64: how many came from buckets.
    """

    ids: tf.Tensor
    found: tf.Tensor


def bucket_candidates(
    tables: HashTables,
    codes: tf.Tensor,
    most_found: int,
    budget: int,
    order: BucketOrder,
    *,
    own: bool,
    most_of_bucket: int,
    implementation: str = "auto",
) -> BucketCandidates:
    """Collects candidate classes from the buckets that queries fall into.

    `own`: for each example the first different classes that come up, table by table and query by
    query. Otherwise those that come up most often over all examples, by id. Then others of
    `order.fill` follow, up to the budget.

    Cost: O(N Q (L + visited classes)), whatever C is.

    Args:
        tables: Of an index.
        codes: `[N, Q, L]` int32, codes of each example's queries; -1 where there is none.
        most_found: How many classes are taken from buckets at most, in [0, S].
        budget: S, 1 <= S <= C.
        order: In which order things come.
        own: Whether each example gets candidates of its own.
        most_of_bucket: How many classes of a bucket are read at most.
        implementation: `"auto"` (default), `"op"` or `"composed"`, as `row_update`.

    Raises:
        TypeError: A dtype is wrong.
        RuntimeError: `implementation="op"` and the library is not there.
        tf.errors.InvalidArgumentError: A code is out of range, or a table is corrupt.
    """
    tables = tables.variables
    check_dtypes(tf.int32, codes=codes)
    arguments = (codes, *order, tf.constant(most_found, tf.int64), tf.constant(budget, tf.int64))
    attributes: dict[str, Any] = {"own": own, "most_of_bucket": most_of_bucket}
    module = op_module(
        implementation, "tfx_bucket_candidates", "entries", tables.entries, (tf.int32,)
    )
    if module is None:
        return BucketCandidates(*bucket_candidates_composed(tables, *arguments, **attributes))
    handles = tables.entries.handle, tables.starts.handle
    return BucketCandidates(*module.tfx_bucket_candidates(*handles, *arguments, **attributes))


def _integers(shape: list[int], end: int, seed: tf.Tensor) -> tf.Tensor:
    return tf.random.stateless_uniform(shape, seed, 0, end, tf.int64, alg="philox")
