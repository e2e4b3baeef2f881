# SPDX-License-Identifier: Apache-2.0
"""Lists of rows of W around centers as an exported model keeps them: an inverted file."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from tfx_largeout.indexes.row_lists import make_row_lists, rows_and_biases
from tfx_largeout.serving.best_classes import Best, best_columns, best_of_many_columns
from tfx_largeout.serving.stored_rows import StoredRows, store_blocks, variable

_COPIED_ELEMENTS = 2**20  # numbers of rows that are copied at a time: 4 MiB
_INFINITY = float("inf")


class StoredLists:
    """Lists of classes whose rows lie close together, and the best of the lists near a query.

    Lists are those of `RowLists`. What a query looks at gets its logit; a class in another list is
    missed.

    Args:
        rows: The rows of all lists, one list after the other.
        ids: `[num_lists, length]` int32, the classes of the lists; -1 where there is none.
        centers: `[num_lists, D + 1]`, without the last coordinate.
        penalties: `[num_lists]`, as `RowLists` has them.
    """

    def __init__(
        self,
        rows: StoredRows,
        ids: tf.Variable,
        centers: tf.Variable,
        penalties: tf.Variable,
    ) -> None:
        self.rows, self.ids = rows, ids
        self.centers, self.penalties = centers, penalties
        self.num_lists, self.length = map(int, ids.shape)

    def best(self, queries: tf.Tensor, k: int, log_partition: bool, num_probed: tf.Tensor) -> Best:
        """Returns the k best classes of the `num_probed` lists nearest to each query.

        Where these have fewer than k, -inf and -1 follow.

        Cost: O(B (num_lists + num_probed length) D) time; memory for a few copies of
        B num_probed length logits.

        Args:
            queries: `[B, D]` float32.
            k: At least 1.
            log_partition: Whether to compute it, over the classes of these lists.
            num_probed: `[]` int32, 1 to `num_lists`.
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
        filled_up = [[0, 0], [0, k - most]]
        scores = tf.pad(scores, filled_up, constant_values=-_INFINITY)
        ids = tf.pad(tf.cast(ids, tf.int64), filled_up, constant_values=-1)
        # Lists are in no order of ids: ties by lower id, padding last.
        by_id = tf.argsort(tf.where(ids < 0, tf.int64.max, ids), axis=1)
        scores, ids = (tf.gather(each, by_id, batch_dims=1) for each in (scores, ids))
        columns = best_columns(scores, k)
        scores, ids = (tf.gather(each, columns, batch_dims=1) for each in (scores, ids))
        return Best(scores, ids, sums)

    def _logits(self, queries: tf.Tensor, lists: tf.Tensor) -> tf.Tensor:
        """Returns the logits of some lists for each query, `[B P, length]`, for lists `[B, P]`."""
        number = tf.shape(lists)[1]
        flat = tf.reshape(lists, [-1])
        count = tf.size(flat)
        turn = max(_COPIED_ELEMENTS // (self.length * self.rows.width), 1)

        def body(first: tf.Tensor, made: tf.TensorArray) -> tuple[tf.Tensor, tf.TensorArray]:
            pairs = tf.range(first, tf.minimum(first + turn, count))
            own = tf.gather(queries, pairs // number)
            logits = self.rows.logits_of_lists(own, tf.gather(flat, pairs), self.length)
            return first + turn, made.write(first // turn, logits)

        made = tf.TensorArray(
            tf.float32,
            size=-(-count // turn),
            infer_shape=False,
            element_shape=tf.TensorShape([None, self.length]),
        )
        _, made = tf.while_loop(
            lambda first, _: first < count, body, (tf.zeros([], tf.int32), made)
        )
        return made.concat()


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
    biases = np.full(ids.shape, -_INFINITY, np.float32)
    biases[there] = points[ids[there], width]
    blocks = (points[of_list, :width] * (of_list >= 0)[:, np.newaxis] for of_list in ids)
    rows = store_blocks(blocks, (ids.size, width), variable(biases.reshape(-1)), dtype)
    return StoredLists(rows, variable(ids), variable(made.centers), variable(made.penalties))
