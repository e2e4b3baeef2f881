# SPDX-License-Identifier: Apache-2.0
"""What `model.evaluate` says of validation data, as the logs of an epoch have it."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf


def validation_logs(
    model: keras.Model, data: Any, batch_size: int, callbacks: Any
) -> dict[str, float]:
    """Returns losses and metrics by their names with `val_` in front; none where there is no data.

    Args:
        model: A compiled model.
        data: `(x, y)`, `(x, y, sample_weight)`, a dataset, or None.
        batch_size: How many examples go through the model at a time, unless they are a dataset.
        callbacks: A `keras.callbacks.CallbackList`.
    """
    if data is None:
        return {}
    x, y, weights = keras.utils.unpack_x_y_sample_weight(data)
    values = model.evaluate(
        x,
        y,
        sample_weight=weights,
        batch_size=None if isinstance(x, tf.data.Dataset) else batch_size,
        callbacks=callbacks,
        verbose=0,
        return_dict=True,
    )
    return {f"val_{name}": value for name, value in values.items()}
