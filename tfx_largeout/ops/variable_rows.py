# SPDX-License-Identifier: Apache-2.0
"""Rows of a variable, read and written in place: it is never read as a whole."""

from __future__ import annotations

import tensorflow as tf


def gather(variable: tf.Variable, ids: tf.Tensor) -> tf.Tensor:
    """Returns rows of a variable, which is not read as a whole."""
    return tf.ensure_shape(
        tf.raw_ops.ResourceGather(resource=variable.handle, indices=ids, dtype=variable.dtype),
        ids.shape.concatenate(variable.shape[1:]),
    )


def scatter_update(variable: tf.Variable, ids: tf.Tensor, rows: tf.Tensor) -> None:
    """Writes rows of a variable in place."""
    tf.raw_ops.ResourceScatterUpdate(resource=variable.handle, indices=ids, updates=rows)
