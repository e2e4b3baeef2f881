# SPDX-License-Identifier: Apache-2.0
"""The labels of all workers, on each of them, where the examples stay with their workers."""

from __future__ import annotations

from typing import Any, NamedTuple

import tensorflow as tf

from tfx_largeout.distribute.global_batch import Parts, is_minus_zero
from tfx_largeout.distribute.meeting import meet
from tfx_largeout.distribute.workers import Workers


class GatheredLabels(NamedTuple):
    """What is known everywhere of the examples of all workers, by rank. N is their number.

    Attributes:
        label_ids: `[N, K]` int64, padded with -1; K is at least 1.
        weights: `[N]` float64, or None.
        mask: `[N]` bool, or None.
        parts: Whose each example is.
        kept: `[n]` int64: which of this worker's rows are its n examples; None: all.
    """

    label_ids: tf.Tensor
    weights: tf.Tensor | None
    mask: tf.Tensor | None
    parts: Parts
    kept: tf.Tensor | None


def gather_labels(
    workers: Workers,
    site: str,
    phase: int,
    step: Any,
    label_ids: tf.Tensor,
    weights: tf.Tensor | None = None,
    mask: tf.Tensor | None = None,
) -> GatheredLabels:
    """Gathers what belongs to examples. Two collectives: where all are, and then one tensor.

    As `gather_examples`, without h.

    Args:
        workers: More than one.
        site: As `meet`.
        phase: As `meet`.
        step: As `meet`.
        label_ids: `[n, K]` int64, padded with -1; n may be 0, and n and K differ between workers.
        weights: `[n]`, on all workers or on none; examples of -0.0 are left out.
        mask: `[n]` bool, likewise.
    """
    rows, num_labels = tf.unstack(tf.shape(label_ids, tf.int64))
    form = 2 * (weights is not None) + (mask is not None)
    heard = meet(workers, phase, site, step, form, [rows, num_labels])
    most = tf.maximum(tf.reduce_max(heard[:, 1]), 1)  # a collective needs something to send
    columns = [tf.pad(label_ids, [[0, 0], [0, most - num_labels]], constant_values=-1)]
    if weights is not None:
        columns.append(tf.bitcast(tf.cast(weights, tf.float64), tf.int64)[:, tf.newaxis])
    if mask is not None:
        columns.append(tf.cast(mask, tf.int64)[:, tf.newaxis])
    parts = Parts(workers, heard[:, 0])
    every, kept = parts.gathered(tf.concat(columns, axis=1), f"{site}/labels"), None
    if weights is not None:
        real = ~is_minus_zero(tf.bitcast(every[:, most], tf.float64))
        kept = tf.where(tf.gather(real, parts.own))[:, 0]
        every, ranks = tf.boolean_mask(every, real), tf.boolean_mask(parts.ranks, real)
        parts = Parts(workers, _sizes(ranks, workers.size))
    return GatheredLabels(
        every[:, :most],
        None if weights is None else tf.bitcast(every[:, most], tf.float64),
        None if mask is None else every[:, -1] != 0,
        parts,
        kept,
    )


def even_parts(workers: Workers, number: tf.Tensor) -> Parts:
    """Returns parts of so many examples, which all workers have, as equal as can be."""
    number = tf.cast(number, tf.int64)
    ranks = tf.range(workers.size, dtype=tf.int64)
    return Parts(workers, (number + workers.size - 1 - ranks) // workers.size)


def _sizes(ranks: tf.Tensor, size: int) -> tf.Tensor:
    return tf.math.unsorted_segment_sum(tf.ones_like(ranks), ranks, size)
