# SPDX-License-Identifier: Apache-2.0
"""The tree over classes: probabilities of classes as products of decisions on the way to them."""

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


class RowTable(NamedTuple):
    """Weights of a kind of decision: a row for each.

    Attributes:
        kernel: `[R, D]`, a Keras variable.
        bias: `[R]`, a Keras variable, or None.
    """

    kernel: Any
    bias: Any

    def logits(self, ids: tf.Tensor, hidden: tf.Tensor) -> tf.Tensor:
        """Returns the logits `[n, N]` of the rows `ids` `[n]`, in the dtype of `hidden` `[N, D]`.

        A row a decision, so that what belongs to neighbours lies together.
        """
        rows = tf.cast(prunable_gather(bare_variable(self.kernel), ids), hidden.dtype)
        logits = tf.matmul(rows, hidden, transpose_b=True)
        if self.bias is None:
            return logits
        bias = prunable_gather(bare_variable(self.bias), ids)
        return logits + tf.cast(bias, hidden.dtype)[:, tf.newaxis]

    def logits_of_each(self, rows: tf.Tensor, hidden: tf.Tensor) -> tf.Tensor:
        """Returns the logits `[N, K, M]` of rows of each example; any where a row is -1."""
        no_labels = tf.zeros([tf.shape(hidden)[0], 0], tf.int64)
        logits = candidate_logits(*self, hidden, no_labels, flat(rows)).candidate_logits
        return tf.reshape(logits, tf.shape(rows))


def flat(values: tf.Tensor) -> tf.Tensor:
    """Returns `[N, K, M]` as `[N, K M]`."""
    shape = tf.shape(values)
    return tf.reshape(values, [shape[0], shape[1] * shape[2]])


class TableGradient(NamedTuple):
    """The gradient with respect to those logits of a table that a step looked at.

    Attributes:
        table: Its name.
        rows: `[S]` or `[N, S]` int64, rows of the table; -1 where there is none.
        gradient: `[N, S]`.
    """

    table: str
    rows: tf.Tensor
    gradient: tf.Tensor


class ClassTree:
    """A tree whose leaves are the classes, and which decides at each inner node by its own weights.

    The probability of a class is the product of the probabilities of the decisions on the way to
    it, so that probabilities sum to 1 over the classes without a sum over all of them.

    Attributes:
        num_classes: C.
        order: Classes in the order of the leaves.
        table_rows: For the name of each table of weights, its number of rows.
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
            hidden: `[N, D]` float32, or float64 beside float64 weights.
            labels: N examples.
        """
        raise NotImplementedError

    def gradients(self, residuals: Any, gradient: tf.Tensor) -> list[TableGradient]:
        """Returns the gradient with respect to the logits that `log_probabilities` looked at.

        Args:
            residuals: What `log_probabilities` returned as such.
            gradient: The gradient of the loss with respect to the log-probabilities, `[N, K]`.
        """
        raise NotImplementedError

    def sweep(
        self, tables: dict[str, RowTable], hidden: tf.Tensor, best_first: bool = False
    ) -> Sweep:
        """Returns a sweep over all classes.

        Args:
            tables: The weights.
            hidden: `[N, D]`, as `log_probabilities`.
            best_first: Whether to begin where high probabilities can be. Default False: in the
                order of the leaves.
        """
        raise NotImplementedError
