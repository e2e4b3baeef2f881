# SPDX-License-Identifier: Apache-2.0
"""update_tables from TensorFlow's own ops."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfx_largeout.ops.checks import check_dtypes, check_ids, require_shape
from tfx_largeout.ops.hashing.hash_codes_composed import (
    MAX_BUCKETS,
    check_functions,
    hash_codes_composed,
)
from tfx_largeout.ops.hashing.hashed_rows import HashedRows, codes_in_ranges
from tfx_largeout.ops.rows.variable_rows import gather, scatter_update
from tfx_largeout.ops.signed_numbers import signed, unsigned
from tfx_largeout.run_time_checks import Check, after

_BLOCK_ROWS = 4096


def update_tables_composed(
    kernel: tf.Variable,
    biases: list[tf.Variable],
    tables: Any,
    functions: Any,
    hashes_per_table: int,
    touched: tf.Tensor,
    now: tf.Tensor,
    which: tf.Tensor,
    radii: tf.Tensor,
) -> tf.Tensor:
    """As `update_tables`."""
    num_classes, num_tables = kernel.shape[0], tables.built_at.shape[0]
    _check_shapes(kernel, biases, tables, touched, now, which, radii)
    width = kernel.shape[1] + (2 if radii.shape[0] else 0)
    are_functions = check_functions(functions, width, num_tables, hashes_per_table)
    _check_buckets(tables, functions, hashes_per_table, radii)
    with after(
        [
            *are_functions,
            check_ids("touched", touched, -1, num_classes),
            Check(now >= 0, lambda: ["now must be at least 0; got", now]),
            _check_range(which, num_tables),
            _check_radii(radii),
        ]
    ):
        touched = tf.boolean_mask(touched, touched >= 0)
    # Marks stay where `build` refuses what it finds: W has changed.
    scatter_update(tables.touched_at, touched, unsigned(tf.fill(tf.shape(touched), now)))

    def build() -> tf.Tensor:
        built_at = signed(gather(tables.built_at, tf.range(which[0], which[1])))
        # A time that can't be is that of a damaged table: as if it had never been built.
        since = tf.reduce_min(tf.where((built_at < -1) | (built_at > now), -1, built_at))
        changed = tf.where(signed(tables.touched_at.read_value()) > since)[:, 0]
        rows = HashedRows(kernel, biases, radii)
        codes = _codes_of_rows(rows, changed, functions, tables, hashes_per_table)
        is_good = _are_good(tables, which)
        with after([_check_tables(which, is_good | (tf.size(changed) == num_classes))]):
            codes = tf.identity(codes)

        def body(t: tf.Tensor, moved: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            before = tf.cond(
                is_good[t - which[0]],
                lambda: _codes_in(tables, t),
                lambda: tf.fill([num_classes], -1),
            )
            return t + 1, moved + _build(tables, t, before, changed, codes[:, t], now)

        return tf.while_loop(
            lambda t, _: t < which[1],
            body,
            (which[0], tf.zeros([], tf.int64)),
            parallel_iterations=1,
        )[1]

    return tf.cond(which[0] < which[1], build, lambda: tf.zeros([], tf.int64))


def _codes_of_rows(
    rows: HashedRows, ids: tf.Tensor, functions: Any, tables: Any, hashes_per_table: int
) -> tf.Tensor:
    """Returns the codes of rows `[n]`, `[n, L]`, block by block."""
    num_tables, num_buckets = tables.built_at.shape[0], tables.starts.shape[1] - 1
    buckets_of_range = num_buckets // max(rows.radii.shape[0], 1)
    num_blocks = tf.maximum(-(-tf.size(ids) // _BLOCK_ROWS), 1)

    def codes(block: tf.Tensor) -> tf.Tensor:
        some = ids[block * _BLOCK_ROWS : (block + 1) * _BLOCK_ROWS]
        vectors, ranges = rows.get(some)
        with after([_check_rows(vectors, some)]):
            vectors = tf.identity(vectors)
        codes = hash_codes_composed(vectors, functions, num_tables, hashes_per_table)
        return codes_in_ranges(codes, ranges, buckets_of_range)

    found = tf.TensorArray(
        tf.int32, num_blocks, infer_shape=False, element_shape=[None, num_tables]
    )
    found = tf.while_loop(
        lambda block, _: block < num_blocks,
        lambda block, found: (block + 1, found.write(block, codes(block))),
        (0, found),
        parallel_iterations=1,
    )[1]
    return found.concat()


def _codes_in(tables: Any, table: tf.Tensor) -> tf.Tensor:
    """Returns the code of each class in one table, `[C]`; -1 where it is missing."""
    num_classes, num_buckets = tables.entries.shape[1], tables.starts.shape[1] - 1
    starts, entries = signed(gather(tables.starts, table)), signed(gather(tables.entries, table))
    in_bucket = tf.repeat(tf.range(num_buckets), starts[1:] - starts[:-1])
    return tf.tensor_scatter_nd_update(
        tf.fill([num_classes], -1), entries[: starts[-1], tf.newaxis], in_bucket
    )


def _build(
    tables: Any,
    table: tf.Tensor,
    before: tf.Tensor,
    changed: tf.Tensor,
    codes: tf.Tensor,
    now: tf.Tensor,
) -> tf.Tensor:
    """Writes one table; returns how many classes changed their bucket."""
    num_classes, num_buckets = tables.entries.shape[1], tables.starts.shape[1] - 1
    codes = tf.tensor_scatter_nd_update(before, changed[:, tf.newaxis], codes)
    counts = tf.math.bincount(tf.maximum(codes, -1) + 1, minlength=num_buckets + 1)
    order = tf.argsort(tf.where(codes < 0, num_buckets, codes), stable=True)
    entries = tf.where(tf.range(num_classes) < num_classes - counts[0], order, -1)
    starts = tf.concat([[0], tf.cumsum(counts[1:])], axis=0)
    scatter_update(tables.entries, table, unsigned(entries))
    scatter_update(tables.starts, table, unsigned(starts))
    scatter_update(tables.built_at, table, unsigned(now))
    return tf.math.count_nonzero((codes >= 0) & (codes != before))


def _check_shapes(
    kernel: tf.Variable,
    biases: list[tf.Variable],
    tables: Any,
    touched: tf.Tensor,
    now: tf.Tensor,
    which: tf.Tensor,
    radii: tf.Tensor,
) -> None:
    """Refuses static shapes and dtypes that don't fit each other.

    Raises:
        ValueError: A shape is wrong.
        TypeError: A dtype is wrong.
    """
    if kernel.shape.rank != 2 or kernel.shape[0] == 0:
        raise ValueError(f"kernel must be [C, D] with C at least 1; got shape {kernel.shape}")
    num_classes = kernel.shape[0]
    for bias in biases:
        check_dtypes(kernel.dtype, bias=bias)
        require_shape("bias", "[C] with the C of kernel", bias, [num_classes])
    for name, variable in zip(tables._fields, tables, strict=True):
        check_dtypes(tf.uint32, **{name: variable})
    if tables.built_at.shape.rank != 1:
        raise ValueError(f"built_at must be [L]; got shape {tables.built_at.shape}")
    num_tables = tables.built_at.shape[0]
    require_shape("entries", "[L, C]", tables.entries, [num_tables, num_classes])
    require_shape("starts", "[L, buckets + 1]", tables.starts, [num_tables, None])
    require_shape("touched_at", "[C]", tables.touched_at, [num_classes])
    require_shape("touched", "[n]", touched, [None])
    require_shape("now", "a scalar", now, [])
    require_shape("tables", "[first, the one behind the last]", which, [2])
    require_shape("radii", "[m]", radii, [None])


def _check_buckets(tables: Any, functions: Any, hashes_per_table: int, radii: tf.Tensor) -> None:
    """Refuses tables with another number of buckets than the functions have values.

    Raises:
        ValueError: They have.
    """
    base = functions.elements.shape[1] if 0 not in functions.elements.shape else 2
    num_buckets = max(radii.shape[0], 1) * base**hashes_per_table
    if num_buckets > MAX_BUCKETS or tables.starts.shape[1] != num_buckets + 1:
        raise ValueError(
            f"starts must be [L, buckets + 1] with {num_buckets} buckets, 2^24 at most; "
            f"got shape {tables.starts.shape}"
        )


def _check_range(which: tf.Tensor, num_tables: int) -> Check:
    """Returns a check that tables are a range."""
    return Check(
        (which[0] >= 0) & (which[0] <= which[1]) & (which[1] <= num_tables),
        lambda: [f"tables must be a range in [0, {num_tables}]; got", which],
    )


def _check_rows(rows: tf.Tensor, ids: tf.Tensor) -> Check:
    """Returns a check that rows of W are finite."""
    wrong = ~tf.math.is_finite(rows)

    def message() -> list[Any]:
        position = tf.where(wrong)[:1]
        row = tf.gather(ids, position[:, 0])
        return ["kernel must be finite; got", tf.gather_nd(rows, position), "in row", row]

    return Check(~tf.reduce_any(wrong), message)


def _check_radii(radii: tf.Tensor) -> Check:
    """Returns a check that radii fall."""
    falls = tf.reduce_all(radii[1:] < radii[:-1]) & tf.reduce_all((radii > 0) & (radii**2 > 0))
    is_finite = tf.reduce_all(tf.math.is_finite(radii**2))
    rule = "radii must fall, and be finite and above 0, and so their squares; got"
    return Check(falls & is_finite, lambda: [rule, radii, "; rebuild the index"])


def _are_good(tables: Any, which: tf.Tensor) -> tf.Tensor:
    """Returns whether each of some tables is one as it was written."""
    num_classes = tables.entries.shape[1]
    some = tf.range(which[0], which[1])
    starts, entries = signed(gather(tables.starts, some)), signed(gather(tables.entries, some))
    end = starts[:, -1:]
    in_use = tf.range(num_classes) < end
    # What is not in use gets numbers of its own, so that only a class that comes up twice is equal.
    listed = tf.sort(tf.where(in_use, entries, -1 - tf.range(num_classes)), axis=1)
    return (
        (starts[:, 0] == 0)
        & (end[:, 0] <= num_classes)
        & tf.reduce_all(starts[:, :-1] <= starts[:, 1:], axis=1)
        & tf.reduce_all(~in_use | ((entries >= 0) & (entries < num_classes)), axis=1)
        & tf.reduce_all(listed[:, :-1] != listed[:, 1:], axis=1)
    )


def _check_tables(which: tf.Tensor, is_good: tf.Tensor) -> Check:
    """Returns a check that tables are good."""
    return Check(
        tf.reduce_all(is_good),
        lambda: [
            "entries and starts must be a table as it was written; table",
            tf.boolean_mask(tf.range(which[0], which[1]), ~is_good)[:1],
            "is corrupt; rebuild the index",
        ],
    )
