# SPDX-License-Identifier: Apache-2.0
"""The look-up of a hash index's tables, from TensorFlow's own ops alone."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfx_largeout.indexes import HashIndex
from tfx_largeout.indexes.hash_index import SEARCH_SEED
from tfx_largeout.ops.hashing.bucket_candidates import BucketOrder, bucket_candidates
from tfx_largeout.ops.rows.variable_rows import signed
from tfx_largeout.serving.best_classes import Best, best_of_many_columns
from tfx_largeout.serving.stored_rows import StoredRows

_BLOCK_ELEMENTS = 2**20  # numbers that a turn makes of the classes of its examples
_INFINITY = float("inf")


class HashLookup:
    """The best of the classes that a hash index finds for a query, as `TopK` with that index.

    Tables are read in the order in which `TopK` reads them, and a query's first `num_found`
    different classes get their logits.

    Args:
        rows: The rows of W.
        index: The index, whose tables are written as they are then.
        num_found: How many classes it finds at most, 1 <= `num_found` <= C.
    """

    def __init__(self, rows: StoredRows, index: HashIndex, num_found: int) -> None:
        self._rows, self._index, self._num_found = rows, index, num_found
        num_classes = int(rows.kernel.shape[0])
        # Drawn here: a server might draw another one from the same seed.
        drawn = BucketOrder.draw(index.num_tables, num_classes, tf.constant(SEARCH_SEED))
        self._order = [each.numpy() for each in drawn]
        visited = index.num_tables * index.num_ranges * min(index.max_per_bucket, num_classes)
        self._of_turn = max(_BLOCK_ELEMENTS // max(visited, num_found * rows.width), 1)

    def best(self, queries: tf.Tensor, k: int, log_partition: bool, num_probed: tf.Tensor) -> Best:
        """Returns the k best classes of those found in `num_probed` tables, ties by lower id.

        Where fewer than k are found, -inf and -1 follow. A query that is not finite has NaN.

        Cost: O(B (L (K D + ranges `max_per_bucket`) + `num_found` D)) time; memory for a few
        blocks of 2^20 numbers, or what one query takes.

        Args:
            queries: `[B, D]` float32.
            k: At least 1.
            log_partition: Whether to compute it, over the classes that are found.
            num_probed: `[]` int32, 1 to the number of tables: the first ones of the order.
        """
        is_finite = tf.reduce_all(tf.math.is_finite(queries), axis=1)
        hashed = tf.where(is_finite[:, tf.newaxis], queries, tf.zeros_like(queries))
        codes = self._codes(hashed, num_probed)
        count = tf.shape(queries)[0]
        turns = -(-count // self._of_turn)

        def body(turn: tf.Tensor, *made: tf.TensorArray) -> tuple[Any, ...]:
            place = slice(turn * self._of_turn, (turn + 1) * self._of_turn)
            block = self._best_of_block(hashed[place], codes[place], k)
            return turn + 1, *(a.write(turn, part) for a, part in zip(made, block, strict=True))

        made = [
            tf.TensorArray(dtype, turns, infer_shape=False, element_shape=shape)
            for dtype, shape in (
                (tf.float32, [None, k]),
                (tf.float32, [None]),
                (tf.int64, [None, k]),
            )
        ]
        made = tf.while_loop(
            lambda turn, *_: turn < turns, body, (0, *made), parallel_iterations=1
        )[1:]
        scores, sums, ids = (each.concat() for each in made)
        return _with_nan(Best(scores, ids, sums if log_partition else None), is_finite)

    def _codes(self, queries: tf.Tensor, num_probed: tf.Tensor) -> tf.Tensor:
        """Returns the codes of queries `[B, L]`, of the tables that are read."""
        codes = self._index.codes(queries, implementation="composed")
        places = tf.argsort(self._order[0])
        return tf.where(places < num_probed, codes, -1)

    def _best_of_block(
        self, queries: tf.Tensor, codes: tf.Tensor, k: int
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Returns the scores, the log partition and the ids of some queries."""
        order = BucketOrder(*(tf.constant(each) for each in self._order))
        found = bucket_candidates(
            self._index.tables,
            codes[:, tf.newaxis],
            self._num_found,
            order,
            per_example=True,
            max_per_bucket=self._index.max_per_bucket,
            num_ranges=self._index.num_ranges,
            implementation="composed",
        ).ids
        none = tf.constant(tf.int64.max)
        ids = tf.sort(tf.where(found < 0, none, found), axis=1)  # so ties go to the lower id
        is_found = ids < none
        logits = self._rows.logits_at(queries, tf.where(is_found, ids, 0))
        logits = tf.where(is_found, logits, -_INFINITY)
        most = min(k, self._num_found)
        columns = best_of_many_columns(logits, most)
        scores = tf.gather(logits, columns, batch_dims=1)
        ids = tf.gather(tf.where(is_found, ids, -1), columns, batch_dims=1)
        filled_up = [[0, 0], [0, k - most]]
        return (
            tf.pad(scores, filled_up, constant_values=-_INFINITY),
            tf.reduce_logsumexp(logits, axis=1),
            tf.pad(ids, filled_up, constant_values=-1),
        )


def check_tables(index: HashIndex) -> None:
    """Refuses an index of which there are no tables, or corrupt ones.

    Raises:
        RuntimeError: It has never been built over rows.
        ValueError: A table is not as it was written.
    """
    if int(index.clock.value) == 0:
        raise RuntimeError(
            "index must be built over rows before it is exported: call index.rebuild(kernel, bias)"
        )
    every_entry, every_start = (signed(each.value).numpy() for each in index.tables[:2])
    num_classes = every_entry.shape[1]
    for table, (starts, entries) in enumerate(zip(every_start, every_entry, strict=True)):
        listed = entries[: max(starts[-1], 0)]
        is_good = starts[0] == 0 and starts[-1] <= num_classes and (starts[1:] >= starts[:-1]).all()
        if not is_good or ((listed < 0) | (listed >= num_classes)).any():
            raise ValueError(
                f"index must have tables as they were written; got table {table}, which is "
                "corrupt: call index.rebuild(kernel, bias)"
            )


def _with_nan(best: Best, is_finite: tf.Tensor) -> Best:
    """Returns the same with NaN, and no -1 that stands for no class, where a query is not finite.

    Args:
        best: Of all queries.
        is_finite: `[B]`.
    """
    nan = tf.constant(float("nan"))
    is_good = is_finite[:, tf.newaxis]
    sums = best.log_partition
    return Best(
        tf.where(is_good, best.scores, nan),
        tf.where(is_good, best.ids, 0),
        None if sums is None else tf.where(is_finite, sums, nan),
    )
