# SPDX-License-Identifier: Apache-2.0
"""Candidate classes from the buckets of hash tables."""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf

from tfx_largeout.ops.checks import check_dtypes
from tfx_largeout.ops.hashing.bucket_candidates_composed import bucket_candidates_composed
from tfx_largeout.ops.hashing.hash_tables import HashTables
from tfx_largeout.ops.implementation import op_module


class BucketOrder(NamedTuple):
    """The chance in a visit of buckets.

    Attributes:
        tables: `[L]` int32, a permutation: the order in which tables are visited.
        rotations: `[L]` int64, in [0, 2^32): the part of a bucket, times 2^32, where reading
            begins.
        first_class: `[]` int64: among classes with equally many votes, those go first that come
            first from here on, in a circle.
    """

    tables: tf.Tensor
    rotations: tf.Tensor
    first_class: tf.Tensor

    @classmethod
    def draw(cls, num_tables: int, num_classes: int, seed: tf.Tensor) -> BucketOrder:
        """Draws all of them."""
        seeds = tf.random.split(seed, 3)
        return cls(
            tf.random.experimental.stateless_shuffle(tf.range(num_tables), seeds[0]),
            _integers([num_tables], 2**32, seeds[1]),
            _integers([], num_classes, seeds[2]),
        )


class BucketCandidates(NamedTuple):
    """What `bucket_candidates` returns."""

    ids: tf.Tensor
    """`[N, S]` or `[S]` int64, without repeats; -1 where there are no more."""
    marks: tf.Tensor
    """Like `ids`; `[0]` without `gives_marks`. With `per_example` the turn in which each came up:
    the number of its range times L, plus the place of its table in the order; `num_ranges` L where
    there are no more. Else how often each came up; 0 where there are no more."""


def bucket_candidates(
    tables: HashTables,
    codes: tf.Tensor,
    budget: int,
    order: BucketOrder,
    *,
    per_example: bool,
    max_per_bucket: int,
    num_ranges: int = 1,
    gives_marks: bool = False,
    implementation: str = "auto",
) -> BucketCandidates:
    """Collects candidate classes from the buckets that queries fall into.

    With `per_example` these are for each example the first S different classes that come up, range
    by range, table by table and query by query. Otherwise they are the S classes that come up most
    often over all examples, by id.

    Cost: O(N Q (L ranges + visited classes)), whatever C is.

    Args:
        tables: The tables of an index.
        codes: `[N, Q, L]` int32, codes of each example's queries, in the first range; -1 where
            there is none.
        budget: S, 1 <= S <= C.
        order: In which order things come.
        per_example: Whether each example gets candidates of its own.
        max_per_bucket: How many classes of a bucket are read at most.
        num_ranges: Into how many ranges the buckets of a table are divided; a query looks into its
            bucket of each.
        gives_marks: Whether to say when, or how often, the classes come up.
        implementation: `"auto"` (default), `"op"` or `"composed"`, as `row_update`.

    Returns:
        A `BucketCandidates`.

    Raises:
        TypeError: A dtype is wrong.
        RuntimeError: `implementation="op"` and the library is not there.
        tf.errors.InvalidArgumentError: A code is out of range, or a table is corrupt.
    """
    tables = tables.variables
    check_dtypes(tf.int32, codes=codes)
    arguments = (codes, *order, tf.constant(budget, tf.int64))
    dtypes = (tf.uint32,)
    module = op_module(
        implementation, "tfx_bucket_candidates", "entries", tables.entries, dtypes, dtypes
    )
    if module is None:
        found = bucket_candidates_composed(
            tables,
            *arguments,
            per_example=per_example,
            max_per_bucket=max_per_bucket,
            num_ranges=num_ranges,
            gives_marks=gives_marks,
        )
    else:
        found = module.tfx_bucket_candidates(
            tables.entries.handle,
            tables.starts.handle,
            *arguments,
            own=per_example,
            most_of_bucket=max_per_bucket,
            num_ranges=num_ranges,
            gives_marks=gives_marks,
        )
    return BucketCandidates(*found)


def _integers(shape: list[int], end: int, seed: tf.Tensor) -> tf.Tensor:
    return tf.random.stateless_uniform(shape, seed, 0, end, tf.int64, alg="philox")
