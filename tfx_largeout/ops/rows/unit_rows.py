# SPDX-License-Identifier: Apache-2.0
"""Rows of norm 1: division by the norm, and gradients on the sphere."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

_OF_SQUARE = {tf.bfloat16: 2.0**-7, tf.float32: 1e-6, tf.float64: 1e-14}  # tolerances of |w|^2


def unit_rows(rows: Any) -> tf.Tensor:
    """Returns x / ||x|| of each row, `[..., D]`, in the dtype of x.

    A row of zeros stays zero: its norm counts as 1, also in the gradient, so that it is finite. A
    row with a number that is not finite becomes NaN. Sums are at least float32, and neither
    overflow nor underflow.
    """
    rows = tf.convert_to_tensor(rows)
    wide = tf.cast(rows, tf.float32) if rows.dtype.size < 4 else rows
    largest = tf.reduce_max(tf.abs(wide), axis=-1, keepdims=True)
    # The direction does not depend on it, so it needs no gradient.
    wide /= tf.stop_gradient(tf.where(tf.equal(largest, 0), tf.ones_like(largest), largest))
    squares = tf.reduce_sum(wide**2, axis=-1, keepdims=True)
    norms = tf.sqrt(tf.where(tf.equal(squares, 0), tf.ones_like(squares), squares))
    return tf.cast(wide / norms, rows.dtype)


def at_norm_1(rows: Any, dtype: Any) -> tf.Tensor:
    """Applies `unit_rows` to rows whose norm is not 1 within the rounding of a dtype.

    So an unchanged row keeps its bits.
    """
    rows = tf.convert_to_tensor(rows)
    wide = tf.cast(rows, tf.float32) if rows.dtype.size < 4 else rows
    excess = tf.abs(tf.reduce_sum(wide**2, axis=-1, keepdims=True) - 1)
    tolerance = tf.constant(_OF_SQUARE[tf.as_dtype(dtype)], wide.dtype)
    return tf.where(excess <= tolerance, rows, unit_rows(rows))


def tangent(rows: tf.Tensor, gradient: tf.Tensor) -> tf.Tensor:
    """Returns g - w <w, g> / <w, w>: the gradient through `unit_rows` of rows w of norm 1."""
    along = tf.reduce_sum(rows * gradient, axis=-1, keepdims=True)
    squares = tf.reduce_sum(rows**2, axis=-1, keepdims=True)
    return gradient - rows * tf.math.divide_no_nan(along, squares)
