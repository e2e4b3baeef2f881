# SPDX-License-Identifier: Apache-2.0
"""Exact statistics of all classes from those of some."""

from __future__ import annotations

import tensorflow as tf

from tfx_largeout.ops.exact.ranks_from_logits import order_keys
from tfx_largeout.ops.exact.streamed_logits import StreamedLogits


def merge(a: StreamedLogits, b: StreamedLogits, k: int | None = None) -> StreamedLogits:
    """Returns the statistics over the classes of both, which have none in common.

    Both are of the same examples and labels. Ranks add up where both were found with the same
    `target_scores`; a label that only one side has ranked gets -1, since the other side's part of
    its rank is not known.

    Cost: O(B (K + k log k)).

    Args:
        a: Over some classes, as `streamed_logits` of a shard gives them.
        b: Over others.
        k: How many of the best classes to keep; None: as many as the side with more of them. Each
            side must have that many, or all of its classes.

    Returns:
        A `StreamedLogits`, in any order of merges the same but for rounding of the logsumexp.
    """
    dtype = a.logsumexp.dtype
    sums = tf.cast(tf.stack([a.logsumexp, b.logsumexp]), tf.float64)
    scores = tf.concat([a.top_scores, b.top_scores], axis=1)
    ids = tf.concat([a.top_ids, b.top_ids], axis=1)
    by_id = tf.argsort(ids, axis=1)
    scores, ids = (tf.gather(x, by_id, batch_dims=1) for x in (scores, ids))
    if k is None:
        k = tf.maximum(tf.shape(a.top_ids)[1], tf.shape(b.top_ids)[1])
    # Of equal scores the first one is the one with the lower id.
    best = tf.math.top_k(order_keys(scores), k).indices
    ranks = tf.maximum(a.target_ranks, 0) + tf.maximum(b.target_ranks, 0)
    is_ranked = (a.target_ranks >= 0) & (b.target_ranks >= 0)
    return StreamedLogits(
        tf.cast(tf.reduce_logsumexp(sums, axis=0), dtype),
        a.target_logits + b.target_logits,
        tf.where(is_ranked, ranks, -1),
        tf.gather(scores, best, batch_dims=1),
        tf.gather(ids, best, batch_dims=1),
    )
