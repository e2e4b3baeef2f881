# SPDX-License-Identifier: Apache-2.0
"""Sweeps over blocks of all classes: log-probabilities, ranks, the best k."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfx_largeout.class_filter import ClassFilter
from tfx_largeout.ops.exact.ranks_from_logits import (
    best_columns,
    best_pairs,
    count_above,
    order_keys,
)
from tfx_largeout.ops.sorted_search import lower_bound

_BLOCK_ELEMENTS = 2**20  # log-probabilities in memory: 4 MiB in float32
_BLOCK_CLASSES = 2**14


class Sweep:
    """Iterates over all classes of a tree, and returns their log-probabilities block by block.

    A place is an int64 scalar; the first is 0.

    Attributes:
        end: The place after the last block.
        hidden: `[N, D]`.
    """

    end: int
    hidden: tf.Tensor

    @property
    def size(self) -> tf.Tensor:
        """The number of classes of a block, an int64 scalar."""
        batch = tf.maximum(tf.shape(self.hidden, tf.int64)[0], 1)
        return tf.minimum(tf.maximum(_BLOCK_ELEMENTS // batch, 64), _BLOCK_CLASSES)

    def block(self, place: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Returns the place of the next block, and classes `[n]` and log-probabilities `[n, N]`."""
        raise NotImplementedError

    def bound(self, place: tf.Tensor) -> tf.Tensor:
        """Returns an upper bound of the log-probabilities from a place on."""
        return tf.zeros([], self.hidden.dtype)


def _over_blocks(
    sweep: Sweep,
    body: Callable[..., Sequence[Any]],
    start: Sequence[Any],
    goes_on: Callable[..., tf.Tensor] | None = None,
    shapes: Sequence[tf.TensorShape] | None = None,
) -> list[Any]:
    """Folds `body(classes, values, *state)` over all blocks, from `start`; returns the state.

    It ends early if `goes_on(place, *state)` is False.
    """

    def condition(place: tf.Tensor, *state: Any) -> tf.Tensor:
        there_is_more = place < sweep.end
        return there_is_more if goes_on is None else there_is_more & goes_on(place, *state)

    def step(place: tf.Tensor, *state: Any) -> tuple[Any, ...]:
        place, classes, values = sweep.block(place)
        return place, *body(classes, values, *state)

    _, *state = tf.while_loop(
        condition,
        step,
        (tf.zeros([], tf.int64), *start),
        shape_invariants=None if shapes is None else (tf.TensorShape([]), *shapes),
        parallel_iterations=1,
    )
    return state


def all_log_probabilities(sweep: Sweep) -> tf.Tensor:
    """Returns `[C, N]`, in the order of the sweep.

    Cost: a sweep; memory O(C N).
    """
    blocks = tf.TensorArray(
        sweep.hidden.dtype,
        size=0,
        dynamic_size=True,
        infer_shape=False,
        element_shape=tf.TensorShape([None, None]),
    )
    _, blocks = _over_blocks(
        sweep,
        lambda _, values, number, blocks: (number + 1, blocks.write(number, values)),
        (tf.zeros([], tf.int32), blocks),
    )
    return blocks.concat()


def sum_of_log_probabilities(sweep: Sweep) -> tf.Tensor:
    """Returns the sum over all classes of each example, `[N]`.

    Cost: a sweep; memory for a block.
    """
    # The running sum is float64, so that rounding errors don't add up.
    (total,) = _over_blocks(
        sweep,
        lambda _, values, total: [total + tf.cast(tf.reduce_sum(values, axis=0), tf.float64)],
        [tf.zeros(tf.shape(sweep.hidden)[:1], tf.float64)],
    )
    return tf.cast(total, sweep.hidden.dtype)


def target_ranks(sweep: Sweep, labels: tf.Tensor) -> tf.Tensor:
    """Returns the rank of each label: how many classes are more probable, ties by lower id.

    The log-probabilities of labels also come from the sweep, so that ties compare as equal.

    Cost: two sweeps, and O(N K C); memory for a block.

    Args:
        sweep: Over all classes.
        labels: `[N, K]` int64, padded with -1.

    Returns:
        `[N, K]` int64; -1 at padding.
    """
    target_keys = order_keys(_target_sweep(sweep, labels))

    def body(classes: tf.Tensor, values: tf.Tensor, ranks: tf.Tensor) -> list[tf.Tensor]:
        keys = order_keys(tf.transpose(values))
        return [ranks + count_above(keys, classes, target_keys, labels)]

    (ranks,) = _over_blocks(sweep, body, [tf.zeros_like(labels)], shapes=[labels.shape])
    return tf.where(labels >= 0, ranks, -1)


def best_classes(
    sweep: Sweep, k: int, allowed: ClassFilter | None = None
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the k highest log-probabilities, falling, and their classes; ties by lower id.

    Stops when the bound of the remaining classes is below the k best of all examples.

    Cost: up to a sweep; memory for a block.

    Args:
        sweep: Over all classes.
        k: 0 <= k <= C.
        allowed: The classes that each example may find. Default: all classes. If there are fewer
            than k, -inf and -1 follow.

    Returns:
        `[N, k]` and `[N, k]` int64.
    """
    none_left = tf.constant(tf.int64.max)  # larger than all ids
    batch = tf.shape(sweep.hidden)[0]
    lowest = tf.constant(float("-inf"), sweep.hidden.dtype)

    def goes_on(place: tf.Tensor, least: tf.Tensor, *best: tf.Tensor) -> tf.Tensor:
        # Also evaluated after the last block.
        bound = sweep.bound(tf.minimum(place, sweep.end - 1))
        return tf.where(tf.math.is_nan(bound), tf.zeros_like(bound), bound) >= least

    def body(
        classes: tf.Tensor,
        values: tf.Tensor,
        least: tf.Tensor,
        scores: tf.Tensor,
        ids: tf.Tensor,
    ) -> tuple[tf.Tensor, ...]:
        by_id = tf.argsort(classes)  # then the lower position is the lower id
        values = tf.transpose(tf.gather(values, by_id))
        ids_of_block = tf.broadcast_to(tf.gather(classes, by_id), tf.shape(values, tf.int64))
        if allowed is not None:
            hidden = allowed.hides(ids_of_block)
            values = tf.where(hidden, lowest, values)
            ids_of_block = tf.where(hidden, none_left, ids_of_block)
        best = best_columns(values, tf.minimum(k, tf.shape(values)[1]))
        block_ids = tf.gather(ids_of_block, best, batch_dims=1)
        scores = tf.concat([scores, tf.gather(values, best, batch_dims=1)], axis=1)
        ids = tf.concat([ids, block_ids], axis=1)
        scores, ids = best_pairs(scores, ids, tf.minimum(k, tf.shape(scores)[1]))
        least = tf.reduce_min(order_keys(scores[:, -1:]))
        return tf.where(tf.shape(scores)[1] < k, lowest, least), scores, ids

    none, matrix = tf.zeros([batch, 0], sweep.hidden.dtype), tf.TensorShape([None, None])
    start, shapes = (lowest, none, tf.cast(none, tf.int64)), (tf.TensorShape([]), matrix, matrix)
    _, scores, ids = _over_blocks(sweep, body, start, goes_on, shapes)
    ids = tf.where(tf.equal(ids, none_left), tf.constant(-1, tf.int64), ids)
    shape = [sweep.hidden.shape[0], k]
    return tf.ensure_shape(scores, shape), tf.ensure_shape(ids, shape)


def _target_sweep(sweep: Sweep, labels: tf.Tensor) -> tf.Tensor:
    """Returns the log-probabilities of the labels, `[N, K]`, as the sweep computes them."""
    shape = tf.shape(labels)
    flat = tf.reshape(labels, [-1])
    examples = tf.repeat(tf.range(shape[0]), shape[1])

    def body(classes: tf.Tensor, values: tf.Tensor, targets: tf.Tensor) -> list[tf.Tensor]:
        by_id = tf.argsort(classes)
        found = lower_bound(tf.gather(classes, by_id), flat)
        rows = tf.gather(by_id, tf.minimum(found, tf.size(classes, tf.int64) - 1))
        here = tf.gather(classes, rows) == flat
        own = tf.gather_nd(values, tf.stack([rows, examples], axis=1))
        return [tf.where(here, own, targets)]

    (targets,) = _over_blocks(sweep, body, [tf.zeros(tf.shape(flat), sweep.hidden.dtype)])
    return tf.reshape(targets, shape)
