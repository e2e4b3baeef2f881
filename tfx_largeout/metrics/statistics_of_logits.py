# SPDX-License-Identifier: Apache-2.0
"""The exact statistics of logits that carry no head."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfx_largeout.labels import normalize_labels
from tfx_largeout.ops.exact.ranks_from_logits import ranks_from_logits
from tfx_largeout.statistics import ExactStatistics


def statistics_of_logits(
    y_true: Any, logits: tf.Tensor, ignore_class: int | None = None
) -> ExactStatistics:
    """Computes from logits what a head would give in evaluation.

    Cost: O(N C K).

    Args:
        y_true: Labels, in any form of `normalize_labels`.
        logits: `[..., C]` floating; the batch dimensions are flattened to N.
        ignore_class: As `normalize_labels`.

    Returns:
        `ExactStatistics`, float32 or, for float64 logits, float64.

    Raises:
        TypeError: `logits` or the labels have the wrong dtype.
        ValueError: `logits` has fewer than two dimensions, or C is not known.
    """
    rank = logits.shape.rank
    if rank is None or rank < 2 or logits.shape[-1] is None:
        raise ValueError(f"y_pred must be logits [..., C] of known C; got shape {logits.shape}")
    if not logits.dtype.is_floating:
        raise TypeError(f"y_pred must be floating; got dtype {logits.dtype.name}")
    num_classes = logits.shape[-1]
    flat = tf.reshape(logits, [-1, num_classes])
    if flat.dtype != tf.float64:
        flat = tf.cast(flat, tf.float32)
    labels = normalize_labels(y_true, num_classes, tf.shape(logits)[:-1], ignore_class)
    target_logits = tf.gather(flat, labels.safe_ids, batch_dims=1)
    return ExactStatistics(
        labels,
        tf.where(labels.mask, target_logits, tf.zeros_like(target_logits)),
        tf.reduce_logsumexp(flat, axis=-1),
        ranks_from_logits(flat, labels.ids),
    )
