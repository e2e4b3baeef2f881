# SPDX-License-Identifier: Apache-2.0
"""Ranks of labels among the logits of all classes, in TensorFlow's ops."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfx_largeout.ops.rows.variable_rows import fold_blocks
from tfx_largeout.run_time_checks import Check, after


def ranks_from_logits(logits: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    """Counts the classes that rank above each label; 0 is the best rank.

    rank(y) = #{c : o_c > o_y} + #{c < y : o_c = o_y}, where NaN counts as minus infinity.

    Cost: O(B C K) time, O(B C) memory: one label slot at a time, never `[B, K, C]`.

    Args:
        logits: o, `[B, C]`, floating.
        labels: `[B, K]` int64 class ids, padded with -1.

    Returns:
        `[B, K]` int64; -1 where the label is -1.

    Raises:
        InvalidArgumentError: A label is not in [-1, C).
    """
    logits = tf.convert_to_tensor(logits)
    labels = tf.cast(labels, tf.int64)
    keys = order_keys(logits)
    with after([check_labels(labels, tf.shape(keys, tf.int64)[1])]):
        target_keys = tf.gather(keys, tf.maximum(labels, 0), batch_dims=1)
    classes = tf.range(tf.shape(keys, tf.int64)[1])
    above = count_above(keys, classes, target_keys, labels)
    return tf.where(labels >= 0, above, -1)


def order_keys(logits: tf.Tensor) -> tf.Tensor:
    """Returns the sort keys of logits: minus infinity for NaN, else the logit."""
    return tf.where(tf.math.is_nan(logits), tf.constant(float("-inf"), logits.dtype), logits)


def best_columns(logits: tf.Tensor, k: int | tf.Tensor) -> tf.Tensor:
    """Returns positions of the k largest of each row, `[B, k]` int32; ties by lower one."""
    return tf.math.top_k(order_keys(logits), k).indices


def best_pairs(
    scores: tf.Tensor, ids: tf.Tensor, k: int | tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the k best scores of each row, falling, and their ids; ties by lower id."""
    by_id = tf.argsort(ids, axis=1)
    scores, ids = (tf.gather(x, by_id, batch_dims=1) for x in (scores, ids))
    best = best_columns(scores, k)
    return tf.gather(scores, best, batch_dims=1), tf.gather(ids, best, batch_dims=1)


def count_above(
    keys: tf.Tensor, classes: tf.Tensor, target_keys: tf.Tensor, labels: tf.Tensor
) -> tf.Tensor:
    """Counts the columns of a block of `classes` `[n]` int64 that rank above each label, `[B, K]`.

    `keys` `[B, n]` and `target_keys` `[B, K]` are the order keys of the classes and of the labels;
    the count of a negative label is undefined.
    """
    num_slots = tf.shape(labels)[1]

    def count_slot(slot: tf.Tensor, _: tf.Tensor, counts: tf.Tensor) -> tf.Tensor:
        target, label = target_keys[:, slot, tf.newaxis], labels[:, slot, tf.newaxis]
        above = (keys > target) | ((keys == target) & (classes < label))
        count = tf.math.count_nonzero(above, axis=1, keepdims=True)
        counts += count * tf.one_hot(slot, num_slots, dtype=tf.int64)
        return tf.ensure_shape(counts, labels.shape)

    return fold_blocks(num_slots, 1, count_slot, tf.zeros_like(labels))


def check_labels(labels: tf.Tensor, num_classes: tf.Tensor) -> Check:
    """Returns a check that every label is in [-1, C); the error has the first that isn't."""
    wrong = (labels < -1) | (labels >= num_classes)
    rule = "labels must be class ids in [-1, num_classes), where num_classes is"

    def message() -> list[Any]:
        position = tf.where(wrong)[:1]
        got = tf.gather_nd(labels, position)
        return [rule, num_classes, "; got", got, "at position", position]

    return Check(~tf.reduce_any(wrong), message)
