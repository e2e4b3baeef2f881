# SPDX-License-Identifier: Apache-2.0
"""Draws from the softmax over classes that are coded by pairs of words."""

from __future__ import annotations

import tensorflow as tf

from tfx_largeout.ops.implementation import op_module
from tfx_largeout.ops.multi_index.class_lists import ClassLists
from tfx_largeout.ops.multi_index.multi_index_draws_composed import multi_index_draws_composed


def multi_index_draws(
    first: tf.Tensor,
    second: tf.Tensor,
    lists: ClassLists,
    uniform: tf.Tensor,
    *,
    implementation: str = "auto",
) -> tuple[tf.Tensor, tf.Tensor]:
    """Draws classes of each example with replacement, by q(c) = w_c exp(u[k1] + v[k2]) / Z.

    (k1, k2) is the code of c, w_c its weight. By inverse sums: k1, then k2, then a class of the
    pair, each with a random number of its own.

    Cost: O(B (Q^2 + S log(Q C))); composed O(B (Q^2 + S (sqrt(Q) + log C))), and memory for
    B (Q + 3 S) sqrt(Q) numbers.

    Args:
        first: u `[B, Q]` float64, at most 0 so that exp stays in range.
        second: v, likewise.
        lists: The classes of each pair.
        uniform: `[B, S, 3]` float64 in [0, 1).
        implementation: As `row_update`.

    Returns:
        The classes `[B, S]` int64, -1 where Z is not a number above 0; and log q of each, float64,
        0 where there is none.

    Raises:
        tf.errors.InvalidArgumentError: The lists are damaged, or a number is out of range.
        RuntimeError: `implementation="op"` and the library is not there.
    """
    module = op_module(
        implementation, "tfx_multi_index_draws", "first", first, [tf.float64], gpu_dtypes=[]
    )
    if module is None:
        return multi_index_draws_composed(first, second, lists, uniform)
    ids, log_probability = module.tfx_multi_index_draws(first, second, *lists, uniform)
    return ids, log_probability
