# SPDX-License-Identifier: Apache-2.0
"""FactoredWeights: logits, evaluation and W of a factored layer, without training."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tfx_largeout.class_filter import ClassFilter
from tfx_largeout.distribute.meeting import AGREE, meet
from tfx_largeout.heads.dense_weights import DenseWeights
from tfx_largeout.heads.factored_over_workers import FactoredOverWorkers
from tfx_largeout.heads.over_workers import whole_hidden
from tfx_largeout.labels import Labels
from tfx_largeout.ops.factored.factored_coordinates_composed import current_rows
from tfx_largeout.ops.factored.factored_state import FactoredState
from tfx_largeout.ops.factored.factored_update import factored_settle
from tfx_largeout.ops.factored.factored_weights import (
    Drift,
    dense_weights,
    factored_logits,
    refresh_bookkeeping,
    relative_drift,
    start_from_rows,
    start_last_rows,
)
from tfx_largeout.statistics import ExactStatistics, TopScores


class FactoredWeights(DenseWeights):
    """A head with W = V U + 1 w^T: its logits, its exact evaluation, and W itself.

    If the classes are spread over workers, each has the rows of V of its classes.
    """

    state: FactoredState
    state_dtype: str
    # The steps over several workers; None: there is one process.
    over_workers: FactoredOverWorkers | None = None

    def flat_logits(self, hidden: tf.Tensor, dtype: str) -> tf.Tensor:
        def logits() -> tf.Tensor:
            return tf.cast(factored_logits(self.state, self._state_input(hidden)), dtype)

        return self.rows.all_logits(logits, hidden, dtype)

    def _exact_statistics(self, hidden: tf.Tensor, labels: Labels) -> ExactStatistics:
        """Returns exact statistics of examples; all workers get the same."""
        u_hidden, shift = self._settled(hidden)
        exact = self.rows.exact(u_hidden, self.state.v, None, labels.ids)
        targets = tf.where(labels.mask, exact.target_logits + shift[:, tf.newaxis], 0)
        return ExactStatistics(labels, targets, exact.logsumexp + shift, exact.target_ranks)

    def top_k(
        self,
        hidden: tf.Tensor,
        k: int,
        allowed: ClassFilter | None = None,
        temperature: Any = None,
    ) -> TopScores:
        batch, allowed = whole_hidden(self, hidden, allowed)
        u_hidden, shift = self._settled(batch.hidden)
        if temperature is not None:
            u_hidden, shift = (x / tf.cast(temperature, x.dtype) for x in (u_hidden, shift))
        exact = self.rows.best(u_hidden, self.state.v, None, k, allowed)
        top = (exact.scores + shift[:, tf.newaxis], exact.ids, exact.log_partition + shift)
        return TopScores(*(batch.of_this_worker(values) for values in top))

    def allowed_ranks(self, hidden: tf.Tensor, ids: tf.Tensor, groups: tf.Tensor) -> tf.Tensor:
        u_hidden, _ = self._settled(hidden)
        bias = self.rows.bias_of_allowed(self.state.v, None, groups)
        return self.rows.exact(u_hidden, self.state.v, bias, ids).target_ranks

    def settle(self) -> None:
        """Brings all rows of V to the current coordinates, as evaluation does. W does not change.

        Several workers must call it together, and also every function that calls it.

        Cost: nothing if they are current; else O(D^2) per stale row.
        """
        meet(self.workers, AGREE, f"settle of head {self.name!r}")
        self._settle()

    def weights_as_arrays(self) -> tuple[np.ndarray, np.ndarray | None]:
        """As `DenseWeights`; memory for the result and a block of rows."""
        self.settle()
        return dense_weights(self.state, self.width)

    def start_from(self, kernel: np.ndarray, bias: np.ndarray | None) -> None:
        """As `DenseWeights`; memory for another W."""
        rows = kernel if bias is None else np.column_stack([kernel, bias])
        start_from_rows(self.state, rows, self.num_classes)
        self.refresh()

    @property
    def weights_with_rows(self) -> list[Any]:
        return [self.state.v, self.state.row_slot]

    def set_last_rows(self, first: int, kernel: np.ndarray | None, bias: np.ndarray | None) -> None:
        """As `DenseWeights`, while V = W, as in a new head."""
        rows = self.state.v.numpy()
        if kernel is not None:
            rows[first:, : self.width] = kernel
        if bias is not None:
            rows[first:, self.width] = bias
        self.state.v.assign(rows)

    def after_other_rows(self, first: int) -> None:
        """As `DenseWeights`: rows from `first` on keep their W. Cost: O(C D^2)."""
        start_last_rows(self.state, first)

    @property
    def weights_dtype(self) -> str:
        """As `DenseWeights`."""
        return self.state_dtype

    @property
    def dense_dtype(self) -> Any:
        """As `DenseWeights`."""
        return self.state_dtype

    def rows_of_w(self, ids: tf.Tensor) -> tf.Tensor:
        """Returns rows of W, `[n, D]`. Changes nothing. Cost: O(n D^2)."""
        state = self.state.variables
        u, shift = state.u.read_value(), state.shift.read_value()
        return (tf.matmul(current_rows(state, ids), u) + shift)[:, : self.width]

    def condition_number(self) -> float:
        """Returns the condition number of U. Cost: O(D^3)."""
        return float(np.linalg.cond(self.state.u.numpy().astype(np.float64)))

    def drift(self) -> Drift:
        """Returns how far Q and U^-T are from W^T W and the inverse of U, by 8 random probes.

        Several workers must call it together.

        Cost: O(8 C D).
        """
        self.settle()
        return relative_drift(self.state, self._add_up)

    def refresh(self) -> None:
        """Computes Q, W^T 1 and U^-T again, in float64. W does not change. Cost: O(C D^2).

        Several workers must call it together.
        """
        self.settle()
        refresh_bookkeeping(self.state, self.num_classes, self._add_up)

    def _state_input(self, hidden: tf.Tensor) -> tf.Tensor:
        """Returns h in the state's dtype, with a constant 1 appended if there is a bias."""
        hidden = tf.cast(hidden, self.state_dtype)
        if hidden.shape[-1] == self.state.width:
            return hidden
        return tf.pad(hidden, [[0, 0], [0, 1]], constant_values=1)

    def _settle(self) -> None:
        if self.over_workers is None:
            factored_settle(self.state)
        else:
            self.over_workers.settle()

    def _settled(self, hidden: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Settles V; returns H U^T `[N, D]` and w . h `[N]`."""
        self._settle()
        return self.coordinates(hidden)

    def coordinates(self, hidden: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns H U^T `[N, D]` and w . h `[N]`: the logits are H U^T V^T + w . h, V settled."""
        state_input = self._state_input(hidden)
        u_hidden = tf.matmul(state_input, self.state.u.value, transpose_b=True)
        return u_hidden, tf.linalg.matvec(state_input, self.state.shift.value)

    def _add_up(self, x: tf.Tensor) -> tf.Tensor:
        return self.workers.sum(x, f"{self.name}/add_up")
