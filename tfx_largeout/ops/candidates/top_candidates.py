# SPDX-License-Identifier: Apache-2.0
"""The best of some candidate classes, by their exact logits."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfx_largeout.ops.candidates.candidate_logits import candidate_logits
from tfx_largeout.statistics import TopScores


def top_candidates(kernel: Any, bias: Any, hidden: tf.Tensor, ids: tf.Tensor, k: int) -> TopScores:
    """Ranks each example's candidates.

    Args:
        kernel: W `[C, D]`, a variable.
        bias: b `[C]`, or None.
        hidden: `[N, D]`.
        ids: `[N, S]` int64, without repeats; -1 where there is none.
        k: How many to return, at most S.

    Returns:
        Logits and ids `[N, k]`, by falling logit, -inf and -1 where there are no more; and log Z of
        the candidates alone, `[N]`.
    """
    dtype = tf.float64 if kernel.dtype in ("float64", tf.float64) else tf.float32
    no_labels = tf.zeros([tf.shape(hidden)[0], 0], tf.int64)
    values = candidate_logits(kernel, bias, tf.cast(hidden, dtype), no_labels, ids)
    logits = tf.where(ids < 0, tf.constant(float("-inf"), dtype), values.candidate_logits)
    scores, places = tf.math.top_k(logits, k)
    log_partition = tf.reduce_logsumexp(logits, axis=1)
    return TopScores(scores, tf.gather(ids, places, batch_dims=1), log_partition)
