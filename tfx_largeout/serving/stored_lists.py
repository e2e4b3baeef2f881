# SPDX-License-Identifier: Apache-2.0
"""Lists of rows of W around centers as an exported model keeps them: an inverted file."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tfx_largeout.indexes.row_lists import make_row_lists, rows_and_biases
from tfx_largeout.serving.stored_rows import (
    StoredRows,
    best_columns,
    best_of_any_order,
    best_of_many_columns,
    in_turns,
    store_blocks,
    variable,
)
from tfx_largeout.statistics import TopScores

_COPIED_ELEMENTS = 2**20  # numbers of rows that are copied at a time: 4 MiB


class StoredLists(NamedTuple):
    """Lists of classes whose rows lie close together, and the best of the lists near a query.

    Lists are those of `RowLists`. What a query looks at gets its logit; a class in another list is
    missed.
    """

    rows: StoredRows  # of all lists, one list after the other
    ids: tf.Variable  # [num_lists, length] int32, the classes of the lists; -1 where there is none
    centers: tf.Variable  # [num_lists, D + 1], as RowLists has them
    penalties: tf.Variable  # [num_lists]

    @property
    def length(self) -> int:
        return int(self.ids.shape[1])

    def best(
        self, queries: tf.Tensor, k: int, log_partition: bool, num_probed: tf.Tensor
    ) -> TopScores:
        """Returns the k best classes of the `num_probed` lists nearest to each query.

        Where these have fewer than k, -inf and -1 follow. `log_partition` says whether to compute
        it, over the classes of these lists.

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
        most = tf.minimum(k, num_probed * self.length)
        columns = best_of_many_columns(logits, most)
        scores = tf.gather(logits, columns, batch_dims=1)
        # Ids are looked up of what is found alone: those of all lists would take more memory than
        # the logits.
        found = tf.gather(lists, columns // self.length, batch_dims=1)
        ids = tf.gather_nd(
            tf.convert_to_tensor(self.ids), tf.stack([found, columns % self.length], axis=-1)
        )
        return TopScores(*best_of_any_order(scores, tf.cast(ids, tf.int64), k), sums)

    def _logits(self, queries: tf.Tensor, lists: tf.Tensor) -> tf.Tensor:
        """Returns the logits of some lists for each query, `[B P, length]`, for lists `[B, P]`."""
        number = tf.shape(lists)[1]
        flat = tf.reshape(lists, [-1])

        def part(begin: tf.Tensor, end: tf.Tensor) -> list[tf.Tensor]:
            pairs = tf.range(begin, end)
            own = tf.gather(queries, pairs // number)
            return [self.rows.logits_of_lists(own, tf.gather(flat, pairs), self.length)]

        size = max(_COPIED_ELEMENTS // (self.length * self.rows.width), 1)
        (logits,) = in_turns(tf.size(flat), size, part, [(tf.float32, [None, self.length])])
        return logits


def store_lists(
    kernel: tf.Variable, bias: tf.Variable | None, dtype: str, num_lists: int, seed: int
) -> StoredLists:
    """Returns an inverted file of the rows of W `[C, D]` and b, which it keeps in a dtype.

    A list has room for 1.25 C / `num_lists` classes; what is left of it is filled up with zeros,
    whose bias is -inf.

    Cost: k-means over a sample of 64 `num_lists` rows, and O(C num_lists D); memory for two more W.
    """
    width = int(kernel.shape[1])
    points = rows_and_biases(kernel, bias)
    made = make_row_lists(points, num_lists, seed)
    ids = np.full((num_lists, made.length), -1, np.int32)
    ids[made.lists[made.order], made.ranks] = made.order

    there = ids >= 0
    biases = np.full(ids.shape, -np.inf, np.float32)
    biases[there] = points[ids[there], width]
    blocks = (points[of_list, :width] * (of_list >= 0)[:, np.newaxis] for of_list in ids)
    rows = store_blocks(blocks, (ids.size, width), variable(biases.reshape(-1)), dtype)
    return StoredLists(rows, variable(ids), variable(made.centers), variable(made.penalties))
