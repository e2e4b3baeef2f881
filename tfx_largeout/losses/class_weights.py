# SPDX-License-Identifier: Apache-2.0
"""Weights of classes, in a loss or as `class_weight` of `fit`, which Keras may read wrongly."""

from __future__ import annotations

import inspect
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfx_largeout.class_counts import class_counts
from tfx_largeout.labels import Labels


def class_weights_argument(class_weights: Any) -> np.ndarray | None:
    """Returns the argument of this name (an array, or packed by `pack_array`) as `[C]` float64."""
    if isinstance(class_weights, dict):
        raise TypeError(
            "class_weights must be numbers, one for each class in the order of ids; got a dict "
            "(which is what fit takes as class_weight)"
        )
    if class_weights is None:
        return None
    return class_counts(class_weights, "class_weights").astype(np.float64)


def weighted(
    labels: Labels, class_weights: tf.Tensor, num_classes: int, are_targets: bool
) -> Labels:
    """Returns labels with class weights; raises ValueError if values are targets."""
    if class_weights.shape[0] != num_classes:
        raise ValueError(
            f"class_weights must have one number for each of the {num_classes} classes; got "
            f"{class_weights.shape[0]}"
        )
    if labels.values is not None and are_targets:
        raise ValueError(
            "class_weights must be None for sparse targets with values, which are "
            "compared with all classes. Give weights to the examples, by sample_weight."
        )
    return labels._replace(weights=tf.gather(class_weights, labels.safe_ids))


def refuse_class_weight(y_true: Any, batch_rank: int) -> None:
    """Raises an error for `class_weight` of `fit`, unless there is one label per example.

    Keras turns `class_weight` into sample weights before it calls a loss, and takes the argmax over
    the last dimension of labels `[B, K]` or `[B, T]` as the class of an example. The loss sees only
    weights; only the call of `fit` that traces it knows where they come from.
    """
    shape = tf.TensorShape(y_true.shape if hasattr(y_true, "shape") else np.shape(y_true))
    is_dense = not isinstance(y_true, (tf.RaggedTensor, tf.SparseTensor))
    if is_dense and batch_rank == 1 and (shape.rank in (None, 1) or shape[1:] == [1]):
        return
    if _class_weight_of_fit() is not None:
        raise ValueError(
            "class_weight must be left out unless each example has one label, in [B] or [B, 1]: "
            f"Keras takes the largest id of a row for its place; got labels of shape {shape}. Give "
            "the loss class_weights, one for each class, or weights to the examples, by "
            "sample_weight."
        )


def _class_weight_of_fit() -> Any:
    """Returns `class_weight` of the innermost running `fit` or `train_on_batch`.

    Keras does not pass it on. It is searched while a step is traced, not in each step.
    """
    frame = inspect.currentframe()
    while frame is not None:
        is_method = frame.f_code.co_name in ("fit", "train_on_batch")
        if is_method and isinstance(frame.f_locals.get("self"), keras.Model):
            return frame.f_locals.get("class_weight")
        frame = frame.f_back
    return None
