# SPDX-License-Identifier: Apache-2.0
"""Checks of tensors: of dtypes and shapes while Python runs, of contents when the graph runs."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tfx_largeout.run_time_checks import Check, after


def check_each(rule: str, values: tf.Tensor, wrong: tf.Tensor) -> Check:
    """Returns a check that `wrong` (bool, like `values`) is False; the error has the first failure.

    `rule` is the message up to "; got".
    """

    def message() -> list[Any]:
        position = tf.where(wrong)[:1]
        return [rule, tf.gather_nd(values, position), "at position", position]

    return Check(~tf.reduce_any(wrong), message)


def check_finite(name: str, values: tf.Tensor) -> Check:
    """Returns a check that no number is infinite or NaN."""
    return check_each(f"{name} must be finite; got", values, ~tf.math.is_finite(values))


def check_ids(name: str, ids: tf.Tensor, lowest: int, num_classes: int) -> Check:
    """Returns a check that each id is in [lowest, C)."""
    rule = f"{name} must be class ids in [{lowest}, {num_classes}); got"
    return check_each(rule, ids, (ids < lowest) | (ids >= num_classes))


def check_shape(name: str, rule: str, tensor: tf.Tensor, want: Any) -> Check | None:
    """Returns a check that a tensor has a shape; None if this is known statically."""
    return check_equal_shape(f"{name} must be {rule}:", tensor, want)


def check_equal_shape(rule: str, tensor: tf.Tensor, want: Any) -> Check | None:
    """As `check_shape`, with a message up to the two shapes."""
    got, want = tf.shape(tensor), tf.convert_to_tensor(want)
    if _are_known_to_be_equal(got, want):
        return None
    # Tensors of another rank would be broadcast.
    has_rank = got.shape.is_compatible_with(want.shape)
    is_same = tf.reduce_all(tf.equal(got, want)) if has_rank else tf.constant(False)
    return Check(is_same, lambda: [rule, want, "; got", got])


def check_equal(rule: str, got: tf.Tensor, want: Any) -> Check:
    """Returns a check of a number, with a message up to the two numbers."""
    return Check(tf.equal(got, want), lambda: [f"{rule}:", want, "; got", got])


def _are_known_to_be_equal(got: tf.Tensor, want: tf.Tensor) -> bool:
    known = [tf.get_static_value(shape) for shape in (got, want)]
    return all(shape is not None for shape in known) and np.array_equal(*known)


def require_rank(name: str, tensor: tf.Tensor | tf.Variable, rank: int) -> None:
    """Raises a ValueError if a tensor is not known to have a rank."""
    if tensor.shape.rank != rank:
        raise ValueError(f"{name} must have rank {rank}; got shape {tensor.shape}")


def require_shape(
    name: str, rule: str, tensor: tf.Tensor | tf.Variable, want: list[int | None]
) -> None:
    """Raises a ValueError if a static shape can't become `want` (None: any size)."""
    if not tensor.shape.is_compatible_with(want):
        sizes = ", ".join("any" if size is None else str(size) for size in want)
        raise ValueError(f"{name} must be {rule}, here [{sizes}]; got shape {tensor.shape}")


def check_learning_rate(learning_rate: tf.Tensor, weight_decay: float) -> Check:
    """Returns a check of a rate: finite, at least 0, and small enough for the weight decay."""
    rule = "learning_rate must be finite, at least 0, and below 1 / weight_decay, which is "
    return Check(
        tf.math.is_finite(learning_rate)
        & (learning_rate >= 0)
        & (learning_rate * weight_decay < 1),
        lambda: [f"{rule}{weight_decay}; got", learning_rate],
    )


def check_dtypes(dtype: tf.DType, **tensors: Any) -> None:
    """Raises a TypeError if a tensor has another dtype."""
    for name, tensor in tensors.items():
        if tensor.dtype != dtype:
            raise TypeError(f"{name} must be {dtype.name}; got {tensor.dtype.name}")


def finite_gradients(**gradients: tuple[tf.Tensor, tf.Tensor]) -> list[tf.Tensor]:
    """Returns gradients, given with their ids, with 0 at padding; raises for NaN and infinity."""
    kept = {name: tf.where(ids >= 0, given, 0) for name, (ids, given) in gradients.items()}
    with after([check_finite(name, gradient) for name, gradient in kept.items()]):
        return [tf.identity(gradient) for gradient in kept.values()]
