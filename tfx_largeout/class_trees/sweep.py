# SPDX-License-Identifier: Apache-2.0
"""What needs all classes, in one sweep of blocks: log-probabilities, ranks, the best k."""

from __future__ import annotations

import tensorflow as tf

from tfx_largeout.ops.exact.ranks_from_logits import count_above, order_keys
from tfx_largeout.ops.sorted_search import lower_bound

_BLOCK_ELEMENTS = 2**20  # log-probabilities that exist at a time: 4 MiB in float32
_BLOCK_CLASSES = 2**14


class Sweep:
    """Walks over all classes of a tree, and gives their log-probabilities block by block.

    A place is an int64 scalar; the first is 0.

    Attributes:
        end: The place behind the last block.
        hidden: `[N, D]`.
    """

    end: int
    hidden: tf.Tensor

    @property
    def size(self) -> tf.Tensor:
        """How many classes make a good block, an int64 scalar."""
        batch = tf.maximum(tf.shape(self.hidden, tf.int64)[0], 1)
        return tf.minimum(tf.maximum(_BLOCK_ELEMENTS // batch, 64), _BLOCK_CLASSES)

    def block(self, place: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Returns the place of the next block, and classes `[n]` and log-probabilities `[n, N]`."""
        raise NotImplementedError

    def bound(self, place: tf.Tensor) -> tf.Tensor:
        """Returns a number that no log-probability from a place on exceeds."""
        return tf.zeros([], self.hidden.dtype)


def all_log_probabilities(sweep: Sweep) -> tf.Tensor:
    """Returns `[C, N]`, in the order in which the sweep comes by.

    Cost: a sweep; memory O(C N).

    Args:
        sweep: Over all classes.
    """

    def body(
        place: tf.Tensor, number: tf.Tensor, blocks: tf.TensorArray
    ) -> tuple[tf.Tensor, tf.Tensor, tf.TensorArray]:
        place, _, values = sweep.block(place)
        return place, number + 1, blocks.write(number, values)

    blocks = tf.TensorArray(
        sweep.hidden.dtype,
        size=0,
        dynamic_size=True,
        infer_shape=False,
        element_shape=tf.TensorShape([None, None]),
    )
    start = (tf.zeros([], tf.int64), tf.zeros([], tf.int32), blocks)
    *_, blocks = tf.while_loop(
        lambda place, *_: place < sweep.end, body, start, parallel_iterations=1
    )
    return blocks.concat()


def sum_of_log_probabilities(sweep: Sweep) -> tf.Tensor:
    """Returns the sum over all classes of each example, `[N]`.

    Cost: a sweep; memory for a block.

    Args:
        sweep: Over all classes.
    """

    def body(place: tf.Tensor, total: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        place, _, values = sweep.block(place)
        # The running sum is float64, so that its rounding doesn't add up.
        return place, total + tf.cast(tf.reduce_sum(values, axis=0), tf.float64)

    _, total = tf.while_loop(
        lambda place, _: place < sweep.end,
        body,
        (tf.zeros([], tf.int64), tf.zeros(tf.shape(sweep.hidden)[:1], tf.float64)),
        parallel_iterations=1,
    )
    return tf.cast(total, sweep.hidden.dtype)


def target_ranks(sweep: Sweep, labels: tf.Tensor) -> tf.Tensor:
    """Returns the rank of each label: how many classes are more probable, ties by lower id.

    Both the label's log-probability and those it is compared with come from the sweep, so that
    what is equal compares as equal.

    Cost: two sweeps, and O(N K C); memory for a block.

    Args:
        sweep: Over all classes.
        labels: `[N, K]` int64, padded with -1.

    Returns:
        `[N, K]` int64; -1 at padding.
    """
    ranks = _rank_sweep(sweep, labels, order_keys(_target_sweep(sweep, labels)))
    return tf.where(labels >= 0, ranks, -1)


def best_classes(sweep: Sweep, k: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the k highest log-probabilities, falling, and their classes; ties by lower id.

    Stops where the bound of what is left is below the k best of all examples.

    Cost: up to a sweep; memory for a block.

    Args:
        sweep: Over all classes.
        k: 0 <= k <= C.

    Returns:
        `[N, k]` and `[N, k]` int64.
    """
    batch = tf.shape(sweep.hidden)[0]
    lowest = tf.constant(float("-inf"), sweep.hidden.dtype)

    def goes_on(place: tf.Tensor, least: tf.Tensor, *best: tf.Tensor) -> tf.Tensor:
        return tf.logical_and(place < sweep.end, _bound_at(sweep, place) >= least)

    def body(
        place: tf.Tensor, least: tf.Tensor, scores: tf.Tensor, ids: tf.Tensor
    ) -> tuple[tf.Tensor, ...]:
        place, classes, values = sweep.block(place)
        by_id = tf.argsort(classes)  # then the lower position is the lower id
        values = tf.transpose(tf.gather(values, by_id))
        best = _best_columns(values, k)
        block_ids = tf.gather(tf.gather(classes, by_id), best)
        scores = tf.concat([scores, tf.gather(values, best, batch_dims=1)], axis=1)
        scores, ids = _best_pairs(scores, tf.concat([ids, block_ids], axis=1), k)
        least = tf.reduce_min(order_keys(scores[:, -1:]))
        return place, tf.where(tf.shape(scores)[1] < k, lowest, least), scores, ids

    matrix = tf.TensorShape([None, None])
    *_, scores, ids = tf.while_loop(
        goes_on,
        body,
        (
            tf.zeros([], tf.int64),
            lowest,
            tf.zeros([batch, 0], sweep.hidden.dtype),
            tf.zeros([batch, 0], tf.int64),
        ),
        shape_invariants=(tf.TensorShape([]), tf.TensorShape([]), matrix, matrix),
        parallel_iterations=1,
    )
    shape = [sweep.hidden.shape[0], k]
    return tf.ensure_shape(scores, shape), tf.ensure_shape(ids, shape)


def _bound_at(sweep: Sweep, place: tf.Tensor) -> tf.Tensor:
    # The condition of a loop is evaluated behind the last block, too.
    bound = sweep.bound(tf.minimum(place, sweep.end - 1))
    return tf.where(tf.math.is_nan(bound), tf.zeros_like(bound), bound)


def _best_columns(values: tf.Tensor, k: int) -> tf.Tensor:
    width = tf.minimum(k, tf.shape(values)[1])
    return tf.math.top_k(order_keys(values), width).indices


def _best_pairs(scores: tf.Tensor, ids: tf.Tensor, k: int) -> tuple[tf.Tensor, tf.Tensor]:
    by_id = tf.argsort(ids, axis=1)
    scores, ids = (tf.gather(pair, by_id, batch_dims=1) for pair in (scores, ids))
    best = _best_columns(scores, k)
    return tf.gather(scores, best, batch_dims=1), tf.gather(ids, best, batch_dims=1)


def _target_sweep(sweep: Sweep, labels: tf.Tensor) -> tf.Tensor:
    """Returns the log-probabilities of the labels, `[N, K]`, as the sweep computes them."""
    shape = tf.shape(labels)
    flat = tf.reshape(labels, [-1])
    examples = tf.repeat(tf.range(shape[0]), shape[1])

    def body(place: tf.Tensor, targets: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        place, classes, values = sweep.block(place)
        by_id = tf.argsort(classes)
        found = lower_bound(tf.gather(classes, by_id), flat)
        rows = tf.gather(by_id, tf.minimum(found, tf.size(classes, tf.int64) - 1))
        here = tf.gather(classes, rows) == flat
        own = tf.gather_nd(values, tf.stack([rows, examples], axis=1))
        return place, tf.where(here, own, targets)

    _, targets = tf.while_loop(
        lambda place, _: place < sweep.end,
        body,
        (tf.zeros([], tf.int64), tf.zeros(tf.shape(flat), sweep.hidden.dtype)),
        parallel_iterations=1,
    )
    return tf.reshape(targets, shape)


def _rank_sweep(sweep: Sweep, labels: tf.Tensor, target_keys: tf.Tensor) -> tf.Tensor:
    def body(place: tf.Tensor, ranks: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        place, classes, values = sweep.block(place)
        keys = order_keys(tf.transpose(values))
        return place, ranks + count_above(keys, classes, target_keys, labels)

    _, ranks = tf.while_loop(
        lambda place, _: place < sweep.end,
        body,
        (tf.zeros([], tf.int64), tf.zeros_like(labels)),
        shape_invariants=(tf.TensorShape([]), labels.shape),
        parallel_iterations=1,
    )
    return ranks
