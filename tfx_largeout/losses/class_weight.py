# SPDX-License-Identifier: Apache-2.0
"""The refusal of Keras's `class_weight` where Keras would read the labels wrongly."""

from __future__ import annotations

import inspect
from typing import Any

import keras
import numpy as np
import tensorflow as tf


def refuse_class_weight(y_true: Any, batch_rank: int) -> None:
    """Refuses `class_weight` with labels other than one an example.

    Keras turns `class_weight` into sample weights before a loss sees anything, and takes the argmax
    over the last dimension of labels `[B, K]` or `[B, T]` for the class of an example. A loss is
    left with some weights, and only the call of `fit` that it is traced in can say where they come
    from.

    Args:
        y_true: Labels, as a loss gets them with sample weights.
        batch_rank: The number of batch dimensions of the hidden activations.

    Raises:
        ValueError: There is a `class_weight`, and labels are not `[B]` or `[B, 1]`.
    """
    shape = tf.TensorShape(y_true.shape if hasattr(y_true, "shape") else np.shape(y_true))
    is_dense = not isinstance(y_true, (tf.RaggedTensor, tf.SparseTensor))
    if is_dense and batch_rank == 1 and (shape.rank in (None, 1) or shape[1:] == [1]):
        return
    if (enclosing_fit() or {}).get("class_weight") is not None:
        raise ValueError(
            "class_weight must be left out unless each example has one label, in [B] or [B, 1]: "
            f"Keras takes the largest id of a row for its place; got labels of shape {shape}. Give "
            "the loss class_weights, one for each class, or weights to the examples, by "
            "sample_weight."
        )


_METHODS = ("fit", "train_on_batch")


def enclosing_fit() -> dict[str, Any] | None:
    """Returns the arguments of the innermost `fit` or `train_on_batch` of a model that is running.

    Keras hands neither a layer nor a loss what it was called with. It is called while a step is
    traced, not in each step.

    Returns:
        The local variables of the method, `self` among them; None outside of these methods.
    """
    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_code.co_name in _METHODS and isinstance(frame.f_locals.get("self"), keras.Model):
            return frame.f_locals
        frame = frame.f_back
    return None
