# SPDX-License-Identifier: Apache-2.0
"""Checks of tensors: of dtypes and shapes while Python runs, of contents when the graph runs."""

from __future__ import annotations

from typing import Any

import tensorflow as tf


def after(checks: list[tf.Operation | None]) -> tf.Operation:
    """Returns a scope whose ops run after the checks (None: one that ran eagerly)."""
    return tf.control_dependencies([check for check in checks if check is not None])


def check_finite(name: str, values: tf.Tensor) -> tf.Operation | None:
    """Asserts that no number is infinite or NaN; the error names the first that is."""
    wrong = ~tf.math.is_finite(values)
    position = tf.where(wrong)[:1]
    return tf.debugging.Assert(
        ~tf.reduce_any(wrong),
        [f"{name} must be finite; got", tf.gather_nd(values, position), "at position", position],
    )


def check_ids(name: str, ids: tf.Tensor, lowest: int, num_classes: int) -> tf.Operation | None:
    """Asserts that each id is in [lowest, C); the error names the first that isn't."""
    wrong = (ids < lowest) | (ids >= num_classes)
    position = tf.where(wrong)[:1]
    return tf.debugging.Assert(
        ~tf.reduce_any(wrong),
        [
            f"{name} must be class ids in [{lowest}, {num_classes}); got",
            tf.gather_nd(ids, position),
            "at position",
            position,
        ],
    )


def check_shape(name: str, rule: str, tensor: tf.Tensor, want: tf.Tensor) -> tf.Operation | None:
    """Asserts that a tensor has a shape."""
    got = tf.shape(tensor)
    want = tf.convert_to_tensor(want)
    # Of another rank, they would be broadcast.
    has_rank = got.shape.is_compatible_with(want.shape)
    is_same = tf.reduce_all(tf.equal(got, want)) if has_rank else False
    return tf.debugging.Assert(is_same, [f"{name} must be {rule}:", want, "; got", got])


def require_shape(
    name: str, rule: str, tensor: tf.Tensor | tf.Variable, want: list[int | None]
) -> None:
    """Refuses a static shape that can't become one with these dimensions (None: any).

    Raises:
        ValueError: It can't.
    """
    if not tensor.shape.is_compatible_with(want):
        sizes = ", ".join("any" if size is None else str(size) for size in want)
        raise ValueError(f"{name} must be {rule}, here [{sizes}]; got shape {tensor.shape}")


def check_learning_rate(learning_rate: tf.Tensor, weight_decay: float) -> tf.Operation | None:
    """Asserts that a rate is finite, not negative, and no more than a weight decay allows."""
    return tf.debugging.Assert(
        tf.math.is_finite(learning_rate)
        & (learning_rate >= 0)
        & (learning_rate * weight_decay < 1),
        [
            "learning_rate must be finite, at least 0, and below 1 / weight_decay, which is "
            f"{weight_decay}; got",
            learning_rate,
        ],
    )


def check_dtypes(dtype: tf.DType, **tensors: Any) -> None:
    """Refuses a tensor that has another dtype.

    Raises:
        TypeError: One has.
    """
    for name, tensor in tensors.items():
        if tensor.dtype != dtype:
            raise TypeError(f"{name} must be {dtype.name}; got {tensor.dtype.name}")


def finite_gradient(name: str, ids: tf.Tensor, gradient: tf.Tensor) -> tf.Tensor:
    """Returns a gradient with 0 where an id is padding, -1.

    Raises:
        tf.errors.InvalidArgumentError: Another number is not finite.
    """
    gradient = tf.where(ids >= 0, gradient, 0)
    with after([check_finite(name, gradient)]):
        return tf.identity(gradient)
