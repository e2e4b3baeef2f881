# SPDX-License-Identifier: Apache-2.0
"""The mean over workers of the gradients of weights that all of them have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfx_largeout.distribute.workers import Workers


def mean_over_workers(
    workers: Workers, gradients: Sequence[Any], names: Sequence[str]
) -> list[Any]:
    """Returns the mean of each gradient; None stays None. Bit by bit the same on all workers.

    One collective for all dense gradients, two for those that are `tf.IndexedSlices`: how many
    slices there are, and one with the slices of each. Slices of equal rows come out added up.

    Args:
        workers: More than one.
        gradients: Tensors, `tf.IndexedSlices` or None, of the same kinds on all workers.
        names: A name for each.
    """
    means = list(gradients)
    dense = [at for at, g in enumerate(means) if isinstance(g, tf.Tensor)]
    slices = [at for at, g in enumerate(means) if isinstance(g, tf.IndexedSlices)]
    if dense:
        for at, mean in zip(dense, _dense(workers, [means[at] for at in dense]), strict=True):
            means[at] = mean
    if slices:
        counts = tf.stack([tf.shape(means[at].indices, tf.int64)[0] for at in slices])
        counts = workers.gather(counts, "trunk/counts")
        for column, at in enumerate(slices):
            means[at] = _slices(workers, means[at], counts[:, column], names[at])
    return means


def _dense(workers: Workers, gradients: list[tf.Tensor]) -> list[tf.Tensor]:
    wide = tf.float64 if any(g.dtype == tf.float64 for g in gradients) else tf.float32
    flat = tf.concat([tf.reshape(tf.cast(g, wide), [-1]) for g in gradients], axis=0)
    flat = workers.sum(flat, "trunk/dense") / workers.size
    parts = tf.split(flat, [g.shape.num_elements() for g in gradients])
    return [
        tf.cast(tf.reshape(part, g.shape), g.dtype)
        for part, g in zip(parts, gradients, strict=True)
    ]


def _slices(
    workers: Workers, gradient: tf.IndexedSlices, counts: tf.Tensor, name: str
) -> tf.IndexedSlices:
    values, ids = gradient.values, tf.cast(gradient.indices, tf.int64)
    wide = tf.float64 if values.dtype == tf.float64 else tf.float32
    most, here = tf.maximum(tf.reduce_max(counts), 1), tf.shape(ids, tf.int64)[0]
    width = values.shape[1:].num_elements()
    rows = tf.pad(
        tf.reshape(tf.cast(values, wide), tf.stack([here, width])), [[0, most - here], [0, 0]]
    )
    sent = tf.sequence_mask(counts, most)
    rows = tf.boolean_mask(workers.gather(rows, f"trunk/rows/{name}"), sent)
    ids = tf.boolean_mask(
        workers.gather(tf.pad(ids, [[0, most - here]]), f"trunk/ids/{name}"), sent
    )
    unique, places = tf.unique(ids)
    sums = tf.math.unsorted_segment_sum(rows, places, tf.size(unique)) / workers.size
    shape = tf.concat([tf.shape(unique), values.shape[1:]], axis=0)
    sums = tf.cast(tf.reshape(sums, shape), values.dtype)
    return tf.IndexedSlices(sums, tf.cast(unique, gradient.indices.dtype), gradient.dense_shape)
