# SPDX-License-Identifier: Apache-2.0
"""Measures of the quality of hash tables: how full they are, and how far behind W."""

from __future__ import annotations

import tensorflow as tf

from tfx_largeout.ops.hashing.hash_codes import HashFunctions, hash_codes
from tfx_largeout.ops.hashing.hash_tables import HashedRows, HashTables, codes_in_ranges
from tfx_largeout.ops.rows.variable_rows import signed

_ENTRIES_LOOKED_AT = 64  # entries per table checked to be up to date


def table_sizes(tables: HashTables, longer: int) -> dict[str, tf.Tensor]:
    """Returns `occupied`, `largest_bucket` and `unreachable`: see `HashIndex.health`.

    Only the first `longer` buckets of each table count for `largest_bucket`.
    """
    starts, num_classes = signed(tables.starts.value), tables.touched_at.shape[0]
    sizes = starts[:, 1:] - starts[:, :-1]
    in_tables = tf.reduce_max(starts[:, -1])
    return {
        "occupied": tf.reduce_mean(tf.cast(sizes > 0, tf.float32)),
        "largest_bucket": tf.cast(tf.reduce_max(sizes[:, :longer]) / num_classes, tf.float32),
        "unreachable": tf.cast(1 - in_tables / num_classes, tf.float32),
    }


def share_that_moved(
    tables: HashTables,
    rows: HashedRows,
    functions: HashFunctions,
    hashes_per_table: int,
    buckets_of_range: int,
) -> tf.Tensor:
    """Returns the share of some entries of each table whose rows now belong to another bucket."""
    classes, buckets = _some_entries(tables)
    num_tables = classes.shape[0]
    vectors, ranges = rows.get(tf.maximum(tf.reshape(classes, [-1]), 0))
    codes = hash_codes(vectors, functions, num_tables, hashes_per_table)
    codes = codes_in_ranges(codes, ranges, buckets_of_range)
    codes = tf.reshape(codes, [num_tables, _ENTRIES_LOOKED_AT, num_tables])
    codes = tf.gather(codes, tf.range(num_tables), axis=2, batch_dims=1)
    moved = (codes != buckets) & (classes >= 0)
    there = tf.math.count_nonzero(classes >= 0, dtype=tf.float32)
    return tf.math.count_nonzero(moved, dtype=tf.float32) / tf.maximum(there, 1)


def _some_entries(tables: HashTables) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns evenly spaced classes of each table, and their buckets, both `[L, n]`."""
    starts, entries = signed(tables.starts.value), signed(tables.entries.value)
    sizes = tf.cast(starts[:, -1:], tf.int64)
    places = tf.range(_ENTRIES_LOOKED_AT, dtype=tf.int64) * sizes // _ENTRIES_LOOKED_AT
    places = tf.cast(places, tf.int32)
    return tf.gather(entries, places, batch_dims=1), tf.searchsorted(starts, places, "right") - 1
