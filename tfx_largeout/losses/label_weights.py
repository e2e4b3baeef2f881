# SPDX-License-Identifier: Apache-2.0
"""LabelWeights: how much each label counts, by its class."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tfx_largeout.labels import Labels
from tfx_largeout.saving import pack_array, unpack_array


class LabelWeights:
    """A weight a class, as losses take it.

    Args:
        class_weights: `[C]` numbers, finite and at least 0; or what `packed` made of them.

    Raises:
        TypeError: They are not numbers.
        ValueError: They are not `[C]`, or one is negative or not finite.
    """

    def __init__(self, class_weights: Any) -> None:
        packed = isinstance(class_weights, str)
        weights = unpack_array(class_weights) if packed else _as_vector(class_weights)
        wrong = ~(np.isfinite(weights) & (weights >= 0))
        if wrong.any():
            first = int(wrong.argmax())
            raise ValueError(
                "class_weights must be finite and at least 0 for every class; got "
                f"{weights[first]} for class {first}"
            )
        self.weights = weights
        with tf.init_scope():  # an eager tensor: graphs capture it and do not copy it
            self._table = tf.constant(weights)

    def of(self, labels: Labels, num_classes: int) -> Labels:
        """Returns the labels, each with the weight of its class.

        Args:
            labels: Normal form, checked.
            num_classes: The number of classes C.

        Raises:
            ValueError: There are not C weights, or the labels are targets with values.
        """
        if self.weights.size != num_classes:
            raise ValueError(
                f"class_weights must have one number for each of the {num_classes} classes; got "
                f"{self.weights.size}"
            )
        if labels.values is not None:
            raise ValueError(
                "class_weights must be None for sparse targets with values of their own, which are "
                "compared with all classes. Give weights to the examples, by sample_weight."
            )
        return labels._replace(weights=tf.gather(self._table, labels.safe_ids))

    def packed(self) -> str:
        """Returns the weights as a string, for a configuration."""
        return pack_array(self.weights)


def _as_vector(class_weights: Any) -> np.ndarray:
    if isinstance(class_weights, dict):
        raise TypeError(
            "class_weights must be numbers, one for each class in the order of ids; got a dict "
            "(which is what fit takes as class_weight)"
        )
    array = np.asarray(class_weights)
    if array.dtype.kind not in "iuf":
        raise TypeError(f"class_weights must be numbers; got dtype {array.dtype}")
    if array.ndim != 1:
        raise ValueError(f"class_weights must have shape [C]; got shape {array.shape}")
    return array.astype(np.float64)
