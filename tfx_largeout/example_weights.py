# SPDX-License-Identifier: Apache-2.0
"""One weight an example from sample weights and a Keras mask."""

from __future__ import annotations

from typing import Any

import tensorflow as tf


def example_weights(batch: tf.Tensor, sample_weight: Any, mask: Any) -> tf.Tensor:
    """Returns the product of the sample weights and the mask, one float64 weight an example.

    Args:
        batch: A tensor `[..., D]`; only its batch shape is read.
        sample_weight: None, or weights that broadcast to the batch shape from the left: for
            `[B, T]`, weights of shape `[]`, `[B]`, `[B, 1]` or `[B, T]`. A further dimension of
            1 at the end is dropped.
        mask: None, or a bool tensor of such a shape; False is a weight of 0.

    Returns:
        `[N]` float64, N the product of the batch shape.

    Raises:
        ValueError: `sample_weight` or `mask` has too many dimensions.
    """
    shape = tf.shape(batch)[:-1]
    rank = batch.shape.rank - 1
    weights = tf.ones(shape, tf.float64)
    for name, factor in (("sample_weight", sample_weight), ("mask", mask)):
        if factor is not None:
            weights *= tf.broadcast_to(_align(name, tf.convert_to_tensor(factor), rank), shape)
    return tf.reshape(weights, [-1])


def _align(name: str, factor: tf.Tensor, rank: int) -> tf.Tensor:
    """Gives `factor` float64 and `rank` dimensions, so that it broadcasts from the left."""
    if factor.shape.rank == rank + 1 and factor.shape[-1] in (1, None):
        factor = tf.squeeze(factor, axis=-1)
    if factor.shape.rank > rank:
        raise ValueError(
            f"{name} must broadcast to the {rank} batch dimension(s) of y_pred; "
            f"got shape {factor.shape}"
        )
    for _ in range(rank - factor.shape.rank):
        factor = factor[..., tf.newaxis]
    return tf.cast(factor, tf.float64)
