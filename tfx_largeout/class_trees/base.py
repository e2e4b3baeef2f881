# SPDX-License-Identifier: Apache-2.0
"""The tree over classes: probabilities of classes are products of decisions on their path."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfx_largeout.class_trees.sweep import Sweep
from tfx_largeout.labels import Labels
from tfx_largeout.ops.candidates.candidate_logits import candidate_logits
from tfx_largeout.ops.rows.variable_rows import bare_variable, prunable_gather


class ClassOrder:
    """A permutation of the classes, in constants outside of any graph: 8 bytes per class.

    Args:
        classes: `[C]`, the class at each position.
    """

    def __init__(self, classes: np.ndarray) -> None:
        self._classes = self._positions = None
        if np.array_equal(classes, np.arange(len(classes))):
            return  # neither table is needed
        positions = np.empty(len(classes), np.int32)
        positions[classes] = np.arange(len(classes), dtype=np.int32)
        with tf.init_scope():
            self._classes = tf.constant(classes, tf.int32)
            self._positions = tf.constant(positions, tf.int32)

    def positions(self, classes: tf.Tensor) -> tf.Tensor:
        """Returns the positions of classes (int64)."""
        if self._positions is None:
            return classes
        return tf.cast(tf.gather(self._positions, classes), tf.int64)

    def classes(self, positions: tf.Tensor) -> tf.Tensor:
        """Returns the classes at positions (int64)."""
        if self._classes is None:
            return positions
        return tf.cast(tf.gather(self._classes, positions), tf.int64)

    def by_class(self, values: tf.Tensor) -> tf.Tensor:
        """Reorders values `[C, ...]` from the order of positions to the order of classes."""
        return values if self._positions is None else tf.gather(values, self._positions)


class RowTable(NamedTuple):
    """The weights of one kind of decision: a row per decision.

    Attributes:
        kernel: `[R, D]`, a Keras variable.
        bias: `[R]`, a Keras variable, or None.
    """

    kernel: Any
    bias: Any

    def logits(self, ids: tf.Tensor, hidden: tf.Tensor) -> tf.Tensor:
        """Returns the logits `[n, N]` of the rows `ids` `[n]`, in the dtype of `hidden` `[N, D]`.

        One row per decision, so that neighbouring decisions are adjacent in memory.
        """
        rows = tf.cast(prunable_gather(bare_variable(self.kernel), ids), hidden.dtype)
        logits = tf.matmul(rows, hidden, transpose_b=True)
        if self.bias is None:
            return logits
        bias = prunable_gather(bare_variable(self.bias), ids)
        return logits + tf.cast(bias, hidden.dtype)[:, tf.newaxis]

    def logits_of_each(self, rows: tf.Tensor, hidden: tf.Tensor) -> tf.Tensor:
        """Returns the logits `[N, K, M]` of rows of each example; undefined for a row of -1."""
        no_labels = tf.zeros([tf.shape(hidden)[0], 0], tf.int64)
        logits = candidate_logits(*self, hidden, no_labels, flat(rows)).candidate_logits
        return tf.reshape(logits, tf.shape(rows))


def flat(values: tf.Tensor) -> tf.Tensor:
    """Returns `[N, K, M]` as `[N, K M]`."""
    shape = tf.shape(values)
    return tf.reshape(values, [shape[0], shape[1] * shape[2]])


class TableGradient(NamedTuple):
    """The gradient with respect to the logits of a table that a step used.

    Attributes:
        table: The name of the table.
        rows: `[S]` or `[N, S]` int64, rows of the table; -1: none.
        gradient: `[N, S]`.
    """

    table: str
    rows: tf.Tensor
    gradient: tf.Tensor


class ClassTree:
    """A tree whose leaves are the classes; each inner node has weights for its decision.

    The probability of a class is the product of the probabilities of the decisions on its path. So
    the probabilities of all classes sum to 1, without computing a sum over all of them.

    Attributes:
        num_classes: C.
        order: Classes in the order of the leaves.
        table_rows: The number of rows of each table of weights, by name.
    """

    num_classes: int
    order: ClassOrder
    table_rows: dict[str, int]

    def log_probabilities(
        self, tables: dict[str, RowTable], hidden: tf.Tensor, labels: Labels
    ) -> tuple[tf.Tensor, Any]:
        """Returns log p of the labels, `[N, K]`, 0 at padding, and residuals.

        Args:
            tables: The weights.
            hidden: `[N, D]` float32, or float64 with float64 weights.
            labels: N examples.
        """
        raise NotImplementedError

    def gradients(self, residuals: Any, gradient: tf.Tensor) -> list[TableGradient]:
        """Returns the gradient with respect to the logits that `log_probabilities` used.

        Args:
            residuals: The residuals of `log_probabilities`.
            gradient: The gradient of the loss with respect to the log-probabilities, `[N, K]`.
        """
        raise NotImplementedError

    def sweep(
        self, tables: dict[str, RowTable], hidden: tf.Tensor, best_first: bool = False
    ) -> Sweep:
        """Returns a sweep over all classes.

        Args:
            tables: The weights.
            hidden: `[N, D]`, as in `log_probabilities`.
            best_first: Whether to begin where probabilities can be highest. Default False: in the
                order of the leaves.
        """
        raise NotImplementedError
