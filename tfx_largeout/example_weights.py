# SPDX-License-Identifier: Apache-2.0
"""One weight per example from sample weights and a Keras mask."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfx_largeout.run_time_checks import Check, after


def example_weights(batch: tf.Tensor, sample_weight: Any, mask: Any) -> tf.Tensor:
    """Returns the product of the sample weights and the mask, one float64 weight per example.

    Args:
        batch: A tensor `[..., D]`; only its batch shape is read.
        sample_weight: None, or weights that broadcast to the batch shape from the left: for
            `[B, T]`, weights of shape `[]`, `[B]`, `[B, 1]` or `[B, T]`. A further dimension of
            1 at the end is dropped.
        mask: None, or a bool tensor of such a shape; False is a weight of 0.

    Returns:
        `[N]` float64, N the product of the batch shape.

    Raises:
        TypeError: They are not numbers; strings, for example.
        ValueError: `sample_weight` or `mask` does not broadcast to the batch shape.
        InvalidArgumentError: The same, for shapes known only at run time.
    """
    shape = tf.shape(batch)[:-1]
    weights = tf.ones(shape, tf.float64)
    for name, factor in (("sample_weight", sample_weight), ("mask", mask)):
        if factor is not None:
            factor = _align(name, tf.convert_to_tensor(factor), batch.shape[:-1])
            weights *= tf.broadcast_to(factor, shape)
    return tf.reshape(weights, [-1])


def _align(name: str, factor: tf.Tensor, batch_shape: tf.TensorShape) -> tf.Tensor:
    """Returns `factor` as float64 with the rank of the batch: broadcasts from the left."""
    rank, given = batch_shape.rank, factor.shape
    if not (factor.dtype.is_floating or factor.dtype.is_integer or factor.dtype.is_bool):
        raise TypeError(f"{name} must be numbers; got dtype {factor.dtype.name}")
    if given.rank is None:  # Keras relaxes shapes that differ between calls, up to an unknown rank
        return _align_at_run_time(name, factor, rank)
    if factor.shape.rank == rank + 1 and factor.shape[-1] in (1, None):
        factor = tf.squeeze(factor, axis=-1)
    if factor.shape.rank > rank or not _broadcasts(factor.shape, batch_shape):
        raise ValueError(
            f"{name} must broadcast from the left to the batch shape {batch_shape} of y_pred; "
            f"got shape {given}"
        )
    for _ in range(rank - factor.shape.rank):
        factor = factor[..., tf.newaxis]
    return tf.cast(factor, tf.float64)


def _align_at_run_time(name: str, factor: tf.Tensor, rank: int) -> tf.Tensor:
    shape = tf.concat([tf.shape(factor), tf.ones([rank], tf.int32)], axis=0)
    check = Check(
        tf.reduce_all(tf.equal(shape[rank:], 1)),
        lambda: [
            f"{name} must broadcast from the left to a batch shape of rank {rank} of y_pred; got",
            tf.shape(factor),
        ],
    )
    with after([check]):
        return tf.cast(tf.reshape(factor, shape[:rank]), tf.float64)


def _broadcasts(shape: tf.TensorShape, batch_shape: tf.TensorShape) -> bool:
    """Whether it may broadcast from the left, judged by the known dimensions."""
    return all(
        size in (1, None, batch_size) or batch_size is None
        for size, batch_size in zip(shape, batch_shape, strict=False)
    )
