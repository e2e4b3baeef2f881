# SPDX-License-Identifier: Apache-2.0
"""L hash tables over the rows of W, kept up to date as rows change."""

from __future__ import annotations

from typing import Any, NamedTuple

import tensorflow as tf

from tfx_largeout.ops.checks import check_dtypes
from tfx_largeout.ops.hashing.hash_codes import HashFunctions
from tfx_largeout.ops.hashing.hash_tables_composed import update_tables_composed
from tfx_largeout.ops.implementation import op_module
from tfx_largeout.ops.rows.variable_rows import bare_variable


class HashTables(NamedTuple):
    """The state of L tables over C classes.

    A table is the list of all classes, sorted by bucket: no bucket has a limit, nothing is dropped.
    All are uint32 and hold numbers of int32, 2^32 - 1 for -1, as a GPU has no variables of int32.

    Attributes:
        entries: `[L, C]`, the classes by bucket, in rising order in each; then -1, as often
            as there are classes without a code.
        starts: `[L, buckets + 1]`, where in `entries` each bucket begins.
        touched_at: `[C]`, when each row was last marked as changed.
        built_at: `[L]`, when each table was last brought up to date; -1: never.
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
    """Marks rows as changed, and brings some tables up to date with all rows that have changed.

    Rows that were changed without a mark keep the place that they had.

    Cost: O(D + K) for each changed row and table, and O(C) moves a table.

    Args:
        kernel: W `[C, D]`: `tf.Variable` or `keras.Variable`; float32, bfloat16, or float64
            (composed only).
        bias: b `[C]` of the same dtype, or None; is looked at where there are radii.
        tables: The state, changed in place.
        functions: As `hash_codes`.
        hashes_per_table: K.
        touched: `[n]` int64, rows to mark, in [-1, C); -1 is skipped.
        now: `[]` int32, the time: greater than at the call before.
        which: `[2]` int64: the first table, and the one behind the last.
        radii: `[m]` float32, falling. Empty: rows are hashed as they are. Else rows w as (w, b,
            sqrt(max(0, R^2 - |w|^2 - b^2))), R being the smallest radius that is at least |(w, b)|,
            or the greatest; a table has m v^K buckets then, those for the greatest radius first.
        implementation: `"auto"` (default), `"op"` or `"composed"`, as `row_update`.

    Returns:
        `[]` int64: how many classes changed their bucket, over these tables.

    Raises:
        TypeError: A dtype is wrong.
        RuntimeError: `implementation="op"` and the library is not there.
        tf.errors.InvalidArgumentError: A row that has changed is not finite, a table is corrupt
            while not all rows have changed, an id or a table is out of range, radii do not fall.
            The tables are as before then; marks stay where W or a table is at fault.
    """
    kernel, tables = bare_variable(kernel), tables.variables
    biases = [] if bias is None else [bare_variable(bias)]
    check_dtypes(tf.int64, touched=touched, which=which)
    check_dtypes(tf.int32, now=now)
    dtypes = (tf.float32, tf.bfloat16)
    module = op_module(implementation, "tfx_hash_index_update", "kernel", kernel, dtypes, dtypes)
    if module is None:
        return update_tables_composed(
            kernel, biases, tables, functions, hashes_per_table, touched, now, which, radii
        )
    return module.tfx_hash_index_update(
        entries=tables.entries.handle,
        starts=tables.starts.handle,
        touched_at=tables.touched_at.handle,
        built_at=tables.built_at.handle,
        kernel=kernel.handle,
        bias=[b.handle for b in biases],
        elements=functions.elements,
        planes=functions.planes,
        touched=touched,
        now=now,
        tables=which,
        radii=radii,
        num_tables=tables.built_at.shape[0],
        hashes_per_table=hashes_per_table,
        bins=functions.bins,
        dtype=kernel.dtype,
    )
