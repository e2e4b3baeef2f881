# SPDX-License-Identifier: Apache-2.0
"""L hash tables over the rows of W, kept up to date as rows change."""

from __future__ import annotations

from typing import Any, NamedTuple

import tensorflow as tf

from tfx_largeout.ops.checks import check_dtypes, check_ids, require_shape
from tfx_largeout.ops.hashing.hash_codes import (
    MAX_BUCKETS,
    HashFunctions,
    check_functions,
    hash_codes_composed,
)
from tfx_largeout.ops.implementation import op_module
from tfx_largeout.ops.rows.row_rule import OP_DTYPES
from tfx_largeout.ops.rows.variable_rows import (
    bare_variable,
    fold_blocks,
    gather,
    scatter_update,
    signed,
    unsigned,
)
from tfx_largeout.run_time_checks import Check, after

_BLOCK_ROWS = 4096


class HashedRows(NamedTuple):
    """The hashed vectors of classes: their rows; with radii they have two more elements.

    Attributes:
        kernel: W `[C, D]`.
        biases: b `[C]`, or nothing.
        radii: `[m]` float32, as in `update_tables`.
    """

    kernel: tf.Variable
    biases: list[tf.Variable]
    radii: tf.Tensor

    def get(self, ids: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns vectors, and the position of the radius of each in `radii`, `[n]` int32, or 0."""
        rows = tf.cast(gather(self.kernel, ids), tf.float32)
        if self.radii.shape[0] == 0:
            return rows, tf.zeros(tf.shape(ids), tf.int32)
        bias = tf.cast(gather(self.biases[0], ids), tf.float32) if self.biases else rows[:, 0] * 0
        rows = tf.concat([rows, bias[:, tf.newaxis]], axis=1)
        square = tf.reduce_sum(rows**2, axis=1, keepdims=True)
        fits = tf.math.count_nonzero(square <= self.radii**2, axis=1, dtype=tf.int32)
        ranges = tf.maximum(fits - 1, 0)
        radius = tf.gather(self.radii, ranges)[:, tf.newaxis]
        rest = tf.sqrt(tf.maximum(radius**2 - square, 0))
        return tf.concat([rows, rest], axis=1), ranges


def codes_in_ranges(codes: tf.Tensor, ranges: tf.Tensor, buckets_of_range: int) -> tf.Tensor:
    """Converts codes `[n, L]` of the first range to the range of each vector, `[n]`."""
    return tf.where(codes < 0, codes, codes + ranges[:, tf.newaxis] * buckets_of_range)


class HashTables(NamedTuple):
    """The state of L tables over C classes.

    A table is the list of all classes, sorted by bucket: buckets have no size limit, nothing is
    dropped. Variables are uint32 and store int32 bits (2^32 - 1 for -1), as a GPU has no int32
    variables.

    Attributes:
        entries: `[L, C]`, the classes by bucket, rising in each bucket; then -1 for each class
            without a code.
        starts: `[L, buckets + 1]`, the start of each bucket in `entries`.
        touched_at: `[C]`, when each row was last marked as changed.
        built_at: `[L]`, when each table was last updated; -1: never.
    """

    entries: Any
    starts: Any
    touched_at: Any
    built_at: Any

    @property
    def variables(self) -> HashTables:
        """The same with `tf.Variable`s."""
        return HashTables(*(bare_variable(v) for v in self))


def update_tables(
    kernel: Any,
    bias: Any,
    tables: HashTables,
    functions: HashFunctions,
    hashes_per_table: int,
    touched: tf.Tensor,
    now: tf.Tensor,
    which: tf.Tensor,
    radii: tf.Tensor,
    *,
    implementation: str = "auto",
) -> tf.Tensor:
    """Marks rows as changed, and updates some tables for all changed rows.

    Rows that were changed without a mark keep their old bucket.

    Cost: O(D + K) per changed row and table, and O(C) moves per table.

    Args:
        kernel: W `[C, D]`: `tf.Variable` or `keras.Variable`; float32, bfloat16, or float64
            (composed only).
        bias: b `[C]` of the same dtype, or None; used only with radii.
        tables: The state, changed in place.
        functions: As `hash_codes`.
        hashes_per_table: K.
        touched: `[n]` int64, rows to mark, in [-1, C); -1 is skipped.
        now: `[]` int32, the time: greater than in the last call.
        which: `[2]` int64: the first table, and the one after the last.
        radii: `[m]` float32, falling. Empty: rows are hashed as they are. Else rows w are hashed as
            (w, b, sqrt(max(0, R^2 - |w|^2 - b^2))), where R is the smallest radius of at least |(w,
            b)|, or the greatest; a table then has m v^K buckets, starting with the greatest radius.
        implementation: See `ops`.

    Returns:
        `[]` int64: the number of classes that changed their bucket, over these tables.

    Raises:
        tf.errors.InvalidArgumentError: As in `ops`; or a changed row is not finite, a table is
            corrupt and not all rows have changed, or radii do not fall. The tables are unchanged
            then; marks are kept if W or a table is the cause.
    """
    kernel, tables = bare_variable(kernel), tables.variables
    biases = [] if bias is None else [bare_variable(bias)]
    check_dtypes(tf.int64, touched=touched, which=which)
    check_dtypes(tf.int32, now=now)
    module = op_module(
        implementation, "tfx_hash_index_update", "kernel", kernel, OP_DTYPES, OP_DTYPES
    )
    if module is None:
        rows = HashedRows(kernel, biases, radii)
        return _composed(rows, tables, functions, hashes_per_table, touched, now, which)
    return module.tfx_hash_index_update(
        **{name: table.handle for name, table in tables._asdict().items()},
        **functions._asdict(),
        kernel=kernel.handle,
        bias=[b.handle for b in biases],
        touched=touched,
        now=now,
        tables=which,
        radii=radii,
        num_tables=tables.built_at.shape[0],
        hashes_per_table=hashes_per_table,
        dtype=kernel.dtype,
    )


def _composed(
    rows: HashedRows,
    tables: HashTables,
    functions: HashFunctions,
    hashes_per_table: int,
    touched: tf.Tensor,
    now: tf.Tensor,
    which: tf.Tensor,
) -> tf.Tensor:
    """As `update_tables`."""
    _check_shapes(rows, tables, touched, now, which)
    num_classes, num_tables, radii = rows.kernel.shape[0], tables.built_at.shape[0], rows.radii
    width = rows.kernel.shape[1] + (2 if radii.shape[0] else 0)
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
    # Marks are kept if `build` raises, since W has changed.
    scatter_update(tables.touched_at, touched, unsigned(tf.fill(tf.shape(touched), now)))

    def build() -> tf.Tensor:
        built_at = signed(gather(tables.built_at, tf.range(which[0], which[1])))
        # An impossible time means a damaged table: treated as never built.
        since = tf.reduce_min(tf.where((built_at < -1) | (built_at > now), -1, built_at))
        changed = tf.where(signed(tables.touched_at.read_value()) > since)[:, 0]
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
    rows: HashedRows,
    ids: tf.Tensor,
    functions: HashFunctions,
    tables: HashTables,
    hashes_per_table: int,
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
    return fold_blocks(
        num_blocks, 1, lambda block, _, found: found.write(block, codes(block)), found
    ).concat()


def _codes_in(tables: HashTables, table: tf.Tensor) -> tf.Tensor:
    """Returns the code of each class in one table, `[C]`; -1 where it is missing."""
    num_classes, num_buckets = tables.entries.shape[1], tables.starts.shape[1] - 1
    starts, entries = signed(gather(tables.starts, table)), signed(gather(tables.entries, table))
    in_bucket = tf.repeat(tf.range(num_buckets), starts[1:] - starts[:-1])
    return tf.tensor_scatter_nd_update(
        tf.fill([num_classes], -1), entries[: starts[-1], tf.newaxis], in_bucket
    )


def _build(
    tables: HashTables,
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
    rows: HashedRows, tables: HashTables, touched: tf.Tensor, now: tf.Tensor, which: tf.Tensor
) -> None:
    """Raises errors for inconsistent static shapes and dtypes."""
    kernel, biases, radii = rows
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


def _check_buckets(
    tables: HashTables, functions: HashFunctions, hashes_per_table: int, radii: tf.Tensor
) -> None:
    """Raises ValueError if the number of buckets does not match the functions."""
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


def _are_good(tables: HashTables, which: tf.Tensor) -> tf.Tensor:
    """Returns whether each of some tables is intact."""
    num_classes = tables.entries.shape[1]
    some = tf.range(which[0], which[1])
    starts, entries = signed(gather(tables.starts, some)), signed(gather(tables.entries, some))
    end = starts[:, -1:]
    in_use = tf.range(num_classes) < end
    # Unused entries get unique numbers, so that only repeated classes are equal.
    listed = tf.sort(tf.where(in_use, entries, -1 - tf.range(num_classes)), axis=1)
    return (
        (starts[:, 0] == 0)
        & (end[:, 0] <= num_classes)
        & tf.reduce_all(starts[:, :-1] <= starts[:, 1:], axis=1)
        & tf.reduce_all(~in_use | ((entries >= 0) & (entries < num_classes)), axis=1)
        & tf.reduce_all(listed[:, :-1] != listed[:, 1:], axis=1)
    )


def _check_tables(which: tf.Tensor, is_good: tf.Tensor) -> Check:
    """Returns a check that tables are intact."""
    return Check(
        tf.reduce_all(is_good),
        lambda: [
            "entries and starts must be a table as it was written; table",
            tf.boolean_mask(tf.range(which[0], which[1]), ~is_good)[:1],
            "is corrupt; rebuild the index",
        ],
    )
