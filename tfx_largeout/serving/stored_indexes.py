# SPDX-License-Identifier: Apache-2.0
"""The indexes of an exported model in TensorFlow's ops: an inverted file, and hash tables."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tfx_largeout.class_filter import ClassFilter
from tfx_largeout.indexes import HashIndex
from tfx_largeout.indexes.hash_index import SEARCH_SEED
from tfx_largeout.indexes.row_lists import make_row_lists, rows_and_biases
from tfx_largeout.ops.exact.ranks_from_logits import best_columns
from tfx_largeout.ops.hashing.bucket_candidates import BucketOrder, bucket_candidates
from tfx_largeout.ops.rows.variable_rows import signed
from tfx_largeout.serving.stored_rows import (
    StoredRows,
    best_of_any_order,
    best_of_many_columns,
    in_turns,
    store_blocks,
    variable,
)
from tfx_largeout.statistics import TopScores

_BLOCK_ELEMENTS = 2**20  # numbers per loop iteration, of rows or of candidate classes
_INFINITY = float("inf")


class StoredLists(NamedTuple):
    """Lists of classes with similar rows, and the search of the lists near a query.

    Lists are as in `RowLists`. A query gets the logits of the classes in its lists; classes in
    other lists are missed.
    """

    rows: StoredRows  # the rows of all lists, in order
    ids: tf.Variable  # [num_lists, length] int32, classes; -1: none
    centers: tf.Variable  # [num_lists, D + 1], as in RowLists
    penalties: tf.Variable  # [num_lists]

    @property
    def length(self) -> int:
        return int(self.ids.shape[1])

    @property
    def variables(self) -> list[tf.Variable]:
        return [*self.rows.variables, self.ids, self.centers, self.penalties]

    def best(
        self,
        queries: tf.Tensor,
        k: int,
        log_partition: bool,
        num_probed: tf.Tensor,
        allowed: ClassFilter | None = None,
    ) -> TopScores:
        """Returns the k best classes of the `num_probed` lists nearest to each query.

        If these have fewer than k, -inf and -1 follow. `log_partition`: whether to compute it, over
        the classes of these lists.

        Cost: O(B (num_lists + num_probed length) D) time; memory for a few copies of
        B num_probed length logits.
        """
        extended = tf.pad(queries, [[0, 0], [0, 1]], constant_values=1)
        closeness = tf.matmul(extended, tf.convert_to_tensor(self.centers), transpose_b=True)
        lengths = tf.norm(extended, axis=1, keepdims=True)
        closeness -= lengths * tf.convert_to_tensor(self.penalties)
        lists = best_columns(closeness, num_probed)
        batch = tf.shape(queries)[0]
        logits = tf.reshape(self._logits(queries, lists), [batch, num_probed * self.length])
        sums = tf.reduce_logsumexp(logits, axis=1) if log_partition else None
        most = k
        if allowed is not None:
            most += tf.shape(allowed.excluded)[1]
        if allowed is not None and allowed.groups is not None:
            every = tf.reshape(tf.gather(tf.convert_to_tensor(self.ids), lists), tf.shape(logits))
            logits = tf.where(allowed.wants(every), logits, -_INFINITY)
        most = tf.minimum(most, num_probed * self.length)
        columns = best_of_many_columns(logits, most)
        scores = tf.gather(logits, columns, batch_dims=1)
        # Ids are looked up only for the classes found: the ids of all lists would take more memory
        # than the logits.
        found = tf.gather(lists, columns // self.length, batch_dims=1)
        ids = tf.gather_nd(
            tf.convert_to_tensor(self.ids), tf.stack([found, columns % self.length], axis=-1)
        )
        ids = tf.cast(ids, tf.int64)
        if allowed is None:
            return TopScores(*best_of_any_order(scores, ids, k), sums)
        return TopScores(*allowed.best_left(*best_of_any_order(scores, ids, most), k), sums)

    def _logits(self, queries: tf.Tensor, lists: tf.Tensor) -> tf.Tensor:
        """Returns the logits `[B P, length]` of each query's lists `[B, P]`."""
        number = tf.shape(lists)[1]
        flat = tf.reshape(lists, [-1])

        def part(begin: tf.Tensor, end: tf.Tensor) -> list[tf.Tensor]:
            pairs = tf.range(begin, end)
            own = tf.gather(queries, pairs // number)
            return [self.rows.logits_of_lists(own, tf.gather(flat, pairs), self.length)]

        size = max(_BLOCK_ELEMENTS // (self.length * self.rows.width), 1)
        (logits,) = in_turns(tf.size(flat), size, part, [(tf.float32, [None, self.length])])
        return logits


def store_lists(
    kernel: tf.Variable, bias: tf.Variable | None, dtype: str, num_lists: int, seed: int
) -> StoredLists:
    """Returns an inverted file of the rows of W `[C, D]` and b, stored in a dtype.

    A list has room for 1.25 C / `num_lists` classes; the rest is padded with zeros with a bias of
    -inf.

    Cost: k-means over a sample of 64 `num_lists` rows, and O(C num_lists D); memory for two more W.
    """
    width = int(kernel.shape[1])
    points = rows_and_biases(kernel, bias)
    made = make_row_lists(points, num_lists, seed)
    ids = np.full((num_lists, made.length), -1, np.int32)
    ids[made.lists[made.order], made.ranks] = made.order

    there = ids >= 0
    biases = np.full(ids.shape, -_INFINITY, np.float32)
    biases[there] = points[ids[there], width]
    blocks = (points[of_list, :width] * (of_list >= 0)[:, np.newaxis] for of_list in ids)
    rows = store_blocks(blocks, (ids.size, width), variable(biases.reshape(-1)), dtype)
    return StoredLists(rows, variable(ids), variable(made.centers), variable(made.penalties))


class HashLookup:
    """The best of the classes that a hash index finds for a query, as in `TopK` with the index.

    Tables are read in the same order as in `TopK`, and the logits of a query's first `num_found`
    distinct classes are computed. The present tables are written.
    """

    def __init__(self, rows: StoredRows, index: HashIndex, num_found: int) -> None:
        self._rows, self._index, self._num_found = rows, index, num_found
        num_classes = int(rows.kernel.shape[0])
        # Drawn here: a server might draw another one from the same seed.
        drawn = BucketOrder.draw(index.num_tables, num_classes, tf.constant(SEARCH_SEED))
        self._order = [each.numpy() for each in drawn]
        visited = index.num_tables * index.num_ranges * min(index.max_per_bucket, num_classes)
        self._of_turn = max(_BLOCK_ELEMENTS // max(visited, num_found * rows.width), 1)
        self.variables = rows.variables

    def best(
        self,
        queries: tf.Tensor,
        k: int,
        log_partition: bool,
        num_probed: tf.Tensor,
        allowed: ClassFilter | None = None,
    ) -> TopScores:
        """Returns the k best classes of those found in `num_probed` tables, ties by lower id.

        If fewer than k are found, -inf and -1 follow. A query that is not finite gives NaN.

        `num_probed`, `[]` int32, is the number of tables to read, in order. `log_partition`:
        whether to compute it, over the classes that are found.

        Cost: O(B (L (K D + ranges `max_per_bucket`) + `num_found` D)) time; memory for a few
        blocks of 2^20 numbers, or what one query takes.
        """
        is_finite = tf.reduce_all(tf.math.is_finite(queries), axis=1)
        hashed = tf.where(is_finite[:, tf.newaxis], queries, tf.zeros_like(queries))
        codes = self._index.codes(hashed, implementation="composed")
        places = tf.argsort(self._order[0])
        codes = tf.where(places < num_probed, codes, -1)  # only tables that are read

        def part(begin: tf.Tensor, end: tf.Tensor) -> TopScores:
            own = None if allowed is None else allowed.of_examples(begin, end)
            return self._best_of_block(hashed[begin:end], codes[begin:end], k, own)

        results = [(tf.float32, [None, k]), (tf.int64, [None, k]), (tf.float32, [None])]
        count = tf.shape(queries)[0]
        scores, ids, sums = in_turns(count, self._of_turn, part, results, parallel_iterations=1)
        # A query that is not finite gives NaN, without a -1 for "no class".
        nan, is_good = tf.constant(float("nan")), is_finite[:, tf.newaxis]
        return TopScores(
            tf.where(is_good, scores, nan),
            tf.where(is_good, ids, 0),
            tf.where(is_finite, sums, nan) if log_partition else None,
        )

    def _best_of_block(
        self, queries: tf.Tensor, codes: tf.Tensor, k: int, allowed: ClassFilter | None
    ) -> TopScores:
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
        if allowed is not None:
            found = tf.where(allowed.hides(found), tf.constant(-1, tf.int64), found)
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
        return TopScores(
            tf.pad(scores, filled_up, constant_values=-_INFINITY),
            tf.pad(ids, filled_up, constant_values=-1),
            tf.reduce_logsumexp(logits, axis=1),
        )


def check_tables(index: HashIndex) -> None:
    """Raises a RuntimeError for an index without tables, a ValueError for corrupt ones."""
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
