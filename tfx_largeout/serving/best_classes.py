# SPDX-License-Identifier: Apache-2.0
"""What the searches of an exported model share: the best of columns, and loops over parts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfx_largeout.ops.exact.ranks_from_logits import order_keys

_GROUP = 32  # columns of which the largest is compared first
_INFINITY = float("inf")


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
        tf.pad(logits, filled_up, constant_values=-_INFINITY), [batch, groups, _GROUP]
    )
    best = best_columns(tf.reduce_max(by_group, axis=2), tf.minimum(k, groups))
    best = tf.sort(best, axis=1)  # then the lower place is the lower column
    found = tf.gather(by_group, best, batch_dims=1)
    places = best_columns(tf.reshape(found, [batch, tf.shape(best)[1] * _GROUP]), k)
    return tf.gather(best, places // _GROUP, batch_dims=1) * _GROUP + places % _GROUP


def taken(columns: tf.Tensor, scores: tf.Tensor, ids: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the scores and ids `[B, n]` in some columns of each row."""
    return tf.gather(scores, columns, batch_dims=1), tf.gather(ids, columns, batch_dims=1)


def filled_up(
    scores: tf.Tensor, ids: tf.Tensor, missing: int | tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns scores and ids with -inf and -1 for the classes that are missing."""
    columns = [[0, 0], [0, missing]]
    return (
        tf.pad(scores, columns, constant_values=-_INFINITY),
        tf.pad(ids, columns, constant_values=-1),
    )


def best_of_any_order(scores: tf.Tensor, ids: tf.Tensor, k: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the k best scores and their ids, ties by lower id, -1 last."""
    by_id = tf.argsort(tf.where(ids < 0, tf.int64.max, ids), axis=1)
    scores, ids = taken(by_id, scores, ids)
    return taken(best_columns(scores, k), scores, ids)


def in_turns(
    count: tf.Tensor,
    size: int,
    part: Callable[[tf.Tensor, tf.Tensor], Sequence[tf.Tensor]],
    results: Sequence[tuple[tf.DType, Any]],
    parallel_iterations: int = 10,
) -> list[tf.Tensor]:
    """Returns what `part(begin, end)` gives for each `size` of `count` rows, one after the other.

    `results` are the dtypes and shapes of what a part gives.
    """
    turns = -(-count // size)

    def body(turn: tf.Tensor, *made: tf.TensorArray) -> tuple[tf.Tensor, ...]:
        given = part(turn * size, tf.minimum((turn + 1) * size, count))
        return turn + 1, *(a.write(turn, one) for a, one in zip(made, given, strict=True))

    made = [
        tf.TensorArray(dtype, turns, infer_shape=False, element_shape=shape)
        for dtype, shape in results
    ]
    made = tf.while_loop(
        lambda turn, *_: turn < turns, body, (0, *made), parallel_iterations=parallel_iterations
    )[1:]
    return [each.concat() for each in made]
