# SPDX-License-Identifier: Apache-2.0
"""An inverted file: lists of rows of W around centers, of which a query looks into a few."""

from __future__ import annotations

import math

import numpy as np
import tensorflow as tf

from tfx_largeout.serving.best_classes import Best, best_columns, best_of_many_columns
from tfx_largeout.serving.k_means import k_means, lists_of_points
from tfx_largeout.serving.stored_rows import StoredRows, store_blocks, variable

_ROOM = 1.25  # a list has room for so many times the mean number of classes
_COPIED_ELEMENTS = 2**20  # numbers of rows that are copied at a time: 4 MiB
_LENGTHS = 0.99  # the quantile of lengths of rows that is R
_INFINITY = float("inf")


class InvertedFile:
    """Lists of classes whose rows lie close together, and the best of the lists near a query.

    The largest inner product is the smallest distance once all rows have the same length:

        |(w, b, sqrt(R^2 - |w|^2 - b^2)) - (h, 1, 0)|^2 = R^2 + |h|^2 + 1 - 2 (w . h + b)

    with R the 0.99 quantile of the lengths of (w, b). Rows longer than R get 0 there: with the
    length of a single very long one, the last coordinate would be nearly all of every point. Lists
    are made around centers of k-means by this distance, and a query looks into those whose centers
    are nearest, with |c| counted as at most R, so that long rows, which often have the largest
    product, are not taken for far. What it looks at gets its logit; a class in another list is
    missed.

    Args:
        rows: The rows of all lists, one list after the other.
        ids: `[num_lists, length]` int32, the classes of the lists; -1 where there is none.
        centers: `[num_lists, D + 1]`, without the last coordinate.
        half_squares: `[num_lists]`, min(|c|, R)^2 / 2 of whole centers.

    References:
        Jégou, Douze, Schmid 2011, Product quantization for nearest neighbor search, section IV
        (the inverted file). Neyshabur, Srebro 2015, On symmetric and asymmetric LSHs for inner
        product search, section 4.2 (the last coordinate).
    """

    def __init__(
        self,
        rows: StoredRows,
        ids: tf.Variable,
        centers: tf.Variable,
        half_squares: tf.Variable,
    ) -> None:
        self.rows, self.ids = rows, ids
        self.centers, self.half_squares = centers, half_squares
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
        lists = best_columns(closeness - tf.convert_to_tensor(self.half_squares), num_probed)
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


def build_inverted_file(
    kernel: tf.Variable, bias: tf.Variable | None, dtype: str, num_lists: int, seed: int
) -> InvertedFile:
    """Returns an inverted file of the rows of W `[C, D]` and b, which it keeps in a dtype.

    A list has room for 1.25 C / `num_lists` classes; what is left of it is filled up with zeros,
    whose bias is -inf.

    Cost: k-means over a sample of 64 `num_lists` rows, and O(C num_lists D); memory for two more W.
    """
    num_classes, width = kernel.shape
    length = min(math.ceil(_ROOM * num_classes / num_lists), num_classes)
    points, square = _points(kernel, bias)
    centers = k_means(points, num_lists, seed)
    lists = lists_of_points(points, centers, length)
    order = np.argsort(lists, kind="stable")
    sizes = np.bincount(lists, minlength=num_lists)
    places = np.arange(num_classes) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    ids = np.full((num_lists, length), -1, np.int32)
    ids[lists[order], places] = order

    there = ids >= 0
    biases = np.full(ids.shape, -_INFINITY, np.float32)
    biases[there] = points[ids[there], width]
    blocks = (points[of_list, :width] * (of_list >= 0)[:, np.newaxis] for of_list in ids)
    rows = store_blocks(blocks, (ids.size, width), variable(biases.reshape(-1)), dtype)
    half_squares = np.minimum(np.einsum("cd,cd->c", centers, centers), square) / 2
    return InvertedFile(rows, variable(ids), variable(centers[:, :-1]), variable(half_squares))


def _points(kernel: tf.Variable, bias: tf.Variable | None) -> tuple[np.ndarray, np.floating]:
    """Returns (w, b, sqrt(max(R^2 - |w|^2 - b^2, 0))) of all rows, `[C, D + 2]`, and R^2."""
    num_classes, width = kernel.shape
    points = np.zeros((num_classes, width + 2), np.float32)
    points[:, :width] = kernel.numpy()
    if bias is not None:
        points[:, width] = bias.numpy()
    squares = np.einsum("cd,cd->c", points, points)
    square = np.quantile(squares, _LENGTHS)
    points[:, -1] = np.sqrt(np.maximum(square - squares, 0))
    return points, square
