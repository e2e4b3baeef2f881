# SPDX-License-Identifier: Apache-2.0
"""Candidate classes from the buckets of hash tables."""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf

from tfx_largeout.devices import split_seed
from tfx_largeout.ops.checks import check_dtypes, check_ids, require_shape
from tfx_largeout.ops.hashing.hash_tables import HashTables
from tfx_largeout.ops.implementation import op_module
from tfx_largeout.ops.rows.variable_rows import signed
from tfx_largeout.run_time_checks import Check, after


class BucketOrder(NamedTuple):
    """The random choices in a visit of buckets.

    Attributes:
        tables: `[L]` int32, a permutation: the order of the tables.
        rotations: `[L]` int64, in [0, 2^32): the relative position in a bucket, times 2^32, at
            which reading begins.
        first_class: `[]` int64: ties between classes go to the first id from here on, cyclically.
    """

    tables: tf.Tensor
    rotations: tf.Tensor
    first_class: tf.Tensor

    @classmethod
    def draw(cls, num_tables: int, num_classes: int, seed: tf.Tensor) -> BucketOrder:
        """Draws all of them."""
        seeds = split_seed(seed, 3)
        return cls(
            tf.random.experimental.stateless_shuffle(tf.range(num_tables), seeds[0]),
            _integers([num_tables], 2**32, seeds[1]),
            _integers([], num_classes, seeds[2]),
        )


class BucketCandidates(NamedTuple):
    """The result of `bucket_candidates`."""

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

    With `per_example` these are for each example the first S distinct classes found, range by
    range, table by table and query by query. Otherwise they are the S classes found most often over
    all examples, by id.

    Cost: O(N Q (L ranges + visited classes)), independent of C.

    Args:
        tables: The tables of an index.
        codes: `[N, Q, L]` int32, codes of each example's queries, in the first range; -1: none.
        budget: S, 1 <= S <= C.
        order: The random order of the visit.
        per_example: Whether each example gets separate candidates.
        max_per_bucket: The largest number of classes read per bucket.
        num_ranges: The number of ranges of buckets in a table; a query reads its bucket in each.
        gives_marks: Whether to return when, or how often, the classes were found.
        implementation: See `ops`, which has the errors, too; also for a corrupt table.
    """
    tables = tables.variables
    check_dtypes(tf.int32, codes=codes)
    arguments = (codes, *order, tf.constant(budget, tf.int64))
    dtypes = (tf.uint32,)
    module = op_module(
        implementation, "tfx_bucket_candidates", "entries", tables.entries, dtypes, dtypes
    )
    if module is None:
        found = _composed(
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
    return tf.random.stateless_uniform(shape, seed, 0, end, tf.int64)


def _composed(
    tables: HashTables,
    codes: tf.Tensor,
    table_order: tf.Tensor,
    rotations: tf.Tensor,
    first_class: tf.Tensor,
    budget: tf.Tensor,
    *,
    per_example: bool,
    max_per_bucket: int,
    num_ranges: int,
    gives_marks: bool,
) -> tuple[tf.Tensor, tf.Tensor]:
    """As `bucket_candidates`: ids and marks."""
    no_marks = tf.zeros([0], tf.int64)
    _check_shapes(tables, codes, table_order, rotations, first_class, max_per_bucket, num_ranges)
    num_tables, num_classes = tables.entries.shape
    num_buckets = tables.starts.shape[1] - 1
    with after(
        [
            _check(
                tf.sort(table_order) == tf.range(num_tables),
                f"order must be a permutation of the {num_tables} tables; got",
                table_order,
            ),
            _check(
                (rotations >= 0) & (rotations < 2**32),
                "rotations must be in [0, 2^32); got",
                rotations,
            ),
            check_ids("first_class", tf.reshape(first_class, [1]), 0, num_classes),
            _check(
                (budget >= 1) & (budget <= num_classes),
                f"budget must be in [1, C] = [1, {num_classes}]; got",
                budget,
            ),
            _check(
                num_buckets % num_ranges == 0,
                f"starts must have as many buckets in each of num_ranges={num_ranges}; got",
                num_buckets,
            ),
        ]
    ):
        codes = tf.identity(codes)
    visited, turns = _visited(tables, codes, table_order, rotations, max_per_bucket, num_ranges)
    if not per_example:
        with after([_check_read(visited.values, num_classes)]):
            elected, votes = _elected(visited.values, num_classes, first_class, budget)
        none = tf.zeros([budget - tf.size(elected, tf.int64)], tf.int64)
        ids, votes = tf.concat([elected, none - 1], axis=0), tf.concat([votes, none], axis=0)
        size = tf.stack([budget])
        return tf.reshape(ids, size), tf.reshape(votes, size) if gives_marks else no_marks
    # Reading ends with the last class taken: corruption after it does not matter.
    shape = tf.stack([visited.nrows(), budget])
    first, turns = _first(visited, turns, num_classes + 1)
    ids = first.to_tensor(-1, shape=shape)
    with after([_check_read(ids, num_classes)]):
        ids = tf.identity(ids)
    marks = turns.to_tensor(num_ranges * num_tables, shape=shape)
    return ids, marks if gives_marks else no_marks


def _check_shapes(
    tables: HashTables,
    codes: tf.Tensor,
    table_order: tf.Tensor,
    rotations: tf.Tensor,
    first_class: tf.Tensor,
    max_per_bucket: int,
    num_ranges: int,
) -> None:
    """Raises errors for wrong static shapes, dtypes and numbers."""
    check_dtypes(tf.uint32, entries=tables.entries, starts=tables.starts)
    if tables.entries.shape.rank != 2 or 0 in tables.entries.shape:
        raise ValueError(
            f"entries must be [L, C] with L and C at least 1; got shape {tables.entries.shape}"
        )
    num_tables = tables.entries.shape[0]
    require_shape("starts", "[L, buckets + 1]", tables.starts, [num_tables, None])
    require_shape("codes", "[N, Q, L]", codes, [None, None, num_tables])
    require_shape("order", "a permutation of the tables", table_order, [num_tables])
    require_shape("rotations", "[L]", rotations, [num_tables])
    require_shape("first_class", "a scalar", first_class, [])
    least = {
        "starts, buckets + 1": (tables.starts.shape[1], 2),
        "max_per_bucket": (max_per_bucket, 1),
        "num_ranges": (num_ranges, 1),
    }
    for name, (number, limit) in least.items():
        if number is not None and number < limit:
            raise ValueError(f"{name} must be at least {limit}; got {number}")


def _visited(
    tables: HashTables,
    codes: tf.Tensor,
    table_order: tf.Tensor,
    rotations: tf.Tensor,
    max_per_bucket: int,
    num_ranges: int,
) -> tuple[tf.RaggedTensor, tf.Tensor]:
    """Returns the classes that each example finds, in order; C for corrupt entries.

    Also the turn of each, with all examples concatenated.
    """
    num_classes, num_buckets = tables.entries.shape[1], tables.starts.shape[1] - 1
    num_buckets //= num_ranges
    by_table = tf.gather(tf.transpose(codes, [0, 2, 1]), table_order, axis=1)
    too_large = tf.boolean_mask(by_table, by_table >= num_buckets)[:1]
    rule = f"codes must be below {num_buckets}, the number of buckets of a range; got"
    with after([_check(by_table < num_buckets, rule, too_large)]):
        by_table = tf.tile(by_table, [1, num_ranges, 1])  # range by range, table by table
    table_order = tf.tile(table_order, [num_ranges])
    table = tf.cast(tf.broadcast_to(table_order[:, tf.newaxis], tf.shape(by_table)), tf.int64)
    first_bucket = tf.repeat(tf.range(num_ranges, dtype=tf.int64), rotations.shape[0]) * num_buckets
    code = tf.cast(tf.maximum(by_table, 0), tf.int64) + first_bucket[:, tf.newaxis]
    starts = signed(tables.starts.read_value())
    begin, end = (
        tf.cast(tf.gather_nd(starts, tf.stack([table, each], axis=-1)), tf.int64)
        for each in (code, code + 1)
    )
    good = (begin >= 0) & (begin <= end) & (end <= num_classes)
    # A corrupt bucket counts as a bucket with one class, C.
    size = tf.where(good, end - begin, 1)
    size = tf.where(by_table < 0, tf.constant(0, tf.int64), size)
    begin = tf.where(good, begin, 0)
    taken = tf.reshape(tf.minimum(size, max_per_bucket), [-1])
    offset = tf.bitwise.right_shift(tf.gather(rotations, table) * size, tf.constant(32, tf.int64))
    count = tf.repeat(tf.range(tf.size(taken, tf.int64)), taken)  # the visit of each class
    begin, size, offset, table, good = (
        tf.gather(tf.reshape(value, [-1]), count) for value in (begin, size, offset, table, good)
    )
    place = tf.range(tf.size(count, tf.int64)) - tf.gather(tf.cumsum(taken) - taken, count)
    flat = table * num_classes + begin + (offset + place) % tf.maximum(size, 1)
    entries = tf.reshape(signed(tables.entries.read_value()), [-1])
    classes = tf.cast(tf.gather(entries, flat), tf.int64)
    is_class = good & (classes >= 0) & (classes < num_classes)
    classes = tf.where(is_class, classes, num_classes)
    of_example = tf.reduce_sum(tf.reshape(taken, [tf.shape(codes)[0], -1]), axis=1)
    num_turns, num_queries = table_order.shape[0], tf.shape(codes, tf.int64)[1]
    turns = count // tf.maximum(num_queries, 1) % num_turns
    return tf.RaggedTensor.from_row_lengths(classes, of_example), turns


def _check_read(classes: tf.Tensor, num_classes: int) -> Check:
    """Returns a check that nothing corrupt was read."""
    rule = (
        "entries and starts must be tables as they were written; one is corrupt; rebuild the index"
    )
    return Check(tf.reduce_all(classes < num_classes), lambda: [rule])


def _first(
    classes: tf.RaggedTensor, turns: tf.Tensor, num_classes: int
) -> tuple[tf.RaggedTensor, tf.RaggedTensor]:
    """Returns the distinct classes of each row, in the order of their first occurrence.

    Also the turns of these occurrences.
    """
    keys, places = tf.unique(classes.value_rowids() * num_classes + classes.values)
    first = tf.RaggedTensor.from_value_rowids(
        keys % num_classes, keys // num_classes, classes.nrows()
    )
    return first, first.with_values(tf.math.unsorted_segment_min(turns, places, tf.size(keys)))


def _elected(
    classes: tf.Tensor, num_classes: int, first_class: tf.Tensor, most: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the most frequent classes, at most `most`, by rising id, and their counts."""
    found, _, votes = tf.unique_with_counts(classes, tf.int64)
    circle = (found - first_class) % num_classes
    best = tf.argsort(circle - votes * num_classes)[:most]
    best = tf.gather(best, tf.argsort(tf.gather(found, best)))
    return tf.gather(found, best), tf.gather(votes, best)


def _check(condition: tf.Tensor, rule: str, value: tf.Tensor) -> Check:
    return Check(tf.reduce_all(condition), lambda: [rule, value])
