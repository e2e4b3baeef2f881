# SPDX-License-Identifier: Apache-2.0
"""The best classes of an exported model: running top-k over blocks, and what is scored again."""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf

from tfx_largeout.ops.exact.ranks_from_logits import order_keys
from tfx_largeout.serving.stored_columns import StoredColumns
from tfx_largeout.serving.stored_rows import StoredRows

_BLOCK_ELEMENTS = 2**22  # numbers that a turn makes: 16 MiB
_LEAST_BLOCK = 64
_GROUP = 32  # columns of which the largest is compared first


class Best(NamedTuple):
    """The best classes of a batch.

    Attributes:
        scores: Logits, `[B, n]`, falling.
        ids: `[B, n]` int64.
        log_partition: log sum exp of the logits that were looked at, `[B]`; or None.
    """

    scores: tf.Tensor
    ids: tf.Tensor
    log_partition: tf.Tensor | None


def best_of_all(queries: tf.Tensor, columns: StoredColumns, k: int, log_partition: bool) -> Best:
    """Returns the k best of all classes, ties by lower id.

    Cost: O(B C D) time; memory for a few blocks of 2^22 numbers, or of 64 classes.

    Args:
        queries: `[B, D]` float32.
        columns: A column for each class.
        k: 1 <= k <= C.
        log_partition: Whether to compute it.
    """
    num_classes = columns.num_classes
    batch = tf.shape(queries)[0]
    numbers = tf.maximum(batch, columns.numbers_copied)
    block = tf.maximum(_BLOCK_ELEMENTS // tf.maximum(numbers, 1), _LEAST_BLOCK)

    def body(start, scores, ids, *sums):  # type: ignore[no-untyped-def]
        end = tf.minimum(start + block, columns.end_of_block(start))
        logits = columns.logits_between(queries, start, end)
        best = best_of_many_columns(logits, tf.minimum(k, end - start))
        scores = tf.concat([scores, tf.gather(logits, best, batch_dims=1)], axis=1)
        ids = tf.concat([ids, tf.cast(best + start, tf.int64)], axis=1)
        # Earlier blocks stand first, so that the lower position is the lower id here, too.
        best = best_columns(scores, tf.minimum(k, tf.shape(scores)[1]))
        scores, ids = (tf.gather(each, best, batch_dims=1) for each in (scores, ids))
        return end, scores, ids, *(_add_exponentials(total, logits) for total in sums)

    start = [tf.zeros([], tf.int32), tf.zeros([batch, 0]), tf.zeros([batch, 0], tf.int64)]
    shapes = [tf.TensorShape([]), tf.TensorShape([None, None]), tf.TensorShape([None, None])]
    if log_partition:
        start.append(tf.fill([batch], tf.constant(float("-inf"), tf.float64)))
        shapes.append(tf.TensorShape([None]))
    _, scores, ids, *sums = tf.while_loop(
        lambda start, *_: start < num_classes,
        body,
        start,
        shape_invariants=shapes,
        parallel_iterations=1,
    )
    for each in (scores, ids):
        each.set_shape([queries.shape[0], k])  # no op, as LiteRT has none for it
    return Best(scores, ids, tf.cast(sums[0], tf.float32) if sums else None)


def scored_again(queries: tf.Tensor, rows: StoredRows, best: Best, k: int) -> Best:
    """Returns the k best among some classes by other rows of W; ids of -1 stay last.

    The log partition gets the new terms of these classes in place of the old ones.
    """
    scores = rows.logits_at(queries, tf.maximum(best.ids, 0))
    scores = tf.where(best.ids < 0, tf.constant(float("-inf")), scores)
    sums = best.log_partition
    if sums is not None:
        sums = _exchanged(sums, best.scores, scores)
    by_id = tf.argsort(best.ids, axis=1)
    scores, ids = (tf.gather(each, by_id, batch_dims=1) for each in (scores, best.ids))
    columns = best_columns(scores, k)
    scores, ids = (tf.gather(each, columns, batch_dims=1) for each in (scores, ids))
    return Best(scores, ids, sums)


def best_columns(logits: tf.Tensor, k: int | tf.Tensor) -> tf.Tensor:
    """Returns where the k largest of each row are, `[B, k]` int32; ties by lower place."""
    return tf.math.top_k(order_keys(logits), k).indices


def best_of_many_columns(logits: tf.Tensor, k: int | tf.Tensor) -> tf.Tensor:
    """Returns the same as `best_columns`, faster where there are many columns, `[B, n]`.

    The k largest are in the k groups of neighbours whose largest are largest.
    """
    batch, number = tf.unstack(tf.shape(logits))
    groups = -(-number // _GROUP)
    filled_up = [[0, 0], [0, groups * _GROUP - number]]
    by_group = tf.reshape(
        tf.pad(logits, filled_up, constant_values=float("-inf")), [batch, groups, _GROUP]
    )
    best = best_columns(tf.reduce_max(by_group, axis=2), tf.minimum(k, groups))
    best = tf.sort(best, axis=1)  # then the lower place is the lower column
    found = tf.gather(by_group, best, batch_dims=1)
    places = best_columns(tf.reshape(found, [batch, tf.shape(best)[1] * _GROUP]), k)
    return tf.gather(best, places // _GROUP, batch_dims=1) * _GROUP + places % _GROUP


def _exchanged(log_partition: tf.Tensor, old: tf.Tensor, new: tf.Tensor) -> tf.Tensor:
    """Returns log(exp(log_partition) - sum exp(old) + sum exp(new)), `[B]`; old, new `[B, n]`."""
    shares = tf.exp(old - log_partition[:, tf.newaxis])
    shares = tf.where(old == float("-inf"), tf.zeros_like(shares), shares)  # also of lists of none
    rest = log_partition + tf.math.log(tf.maximum(1 - tf.reduce_sum(shares, axis=1), 0))
    return tf.reduce_logsumexp(tf.concat([rest[:, tf.newaxis], new], axis=1), axis=1)


def _add_exponentials(total: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
    # The sum over blocks is float64, so that its rounding doesn't add up.
    block = tf.cast(tf.reduce_logsumexp(logits, axis=1), tf.float64)
    return tf.reduce_logsumexp(tf.stack([total, block], axis=1), axis=1)
