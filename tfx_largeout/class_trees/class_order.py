# SPDX-License-Identifier: Apache-2.0
"""Classes in the order of a tree's leaves."""

from __future__ import annotations

import numpy as np
import tensorflow as tf


class ClassOrder:
    """A permutation of the classes, in constants outside of any graph: 8 bytes a class.

    Args:
        classes: `[C]`, the class at each position.
    """

    def __init__(self, classes: np.ndarray) -> None:
        self._classes = self._positions = None
        if np.array_equal(classes, np.arange(len(classes))):
            return  # then neither table is needed
        positions = np.empty(len(classes), np.int32)
        positions[classes] = np.arange(len(classes), dtype=np.int32)
        with tf.init_scope():
            self._classes = tf.constant(classes, tf.int32)
            self._positions = tf.constant(positions, tf.int32)

    def positions(self, classes: tf.Tensor) -> tf.Tensor:
        """Returns where classes (int64) stand."""
        if self._positions is None:
            return classes
        return tf.cast(tf.gather(self._positions, classes), tf.int64)

    def classes(self, positions: tf.Tensor) -> tf.Tensor:
        """Returns the classes at positions (int64)."""
        if self._classes is None:
            return positions
        return tf.cast(tf.gather(self._classes, positions), tf.int64)

    def by_class(self, values: tf.Tensor) -> tf.Tensor:
        """Returns values `[C, ...]`, which stand in the order of positions, in that of classes."""
        return values if self._positions is None else tf.gather(values, self._positions)
