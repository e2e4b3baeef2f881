# SPDX-License-Identifier: Apache-2.0
"""FactoredHead over workers: rows of V are spread, examples stay where they are.

No message grows with C. In a step of B examples in all, with K labels each, a worker receives, with
f = (R - 1) / R and numbers of 4 bytes (8 for a float64 head):

    f (8 B (K + 1) + 4 B (K + 2) + 8 (B / R) K D + 8 (3 D^2 + 2 D + 8))

labels with their weights; a, q and s; the rows of labels, and x_y for those rows; sums over the
batch. In the third term a label shared by several examples of a worker counts once. This term
assumes evenly spread labels: it depends on the most rows that one worker sends to another.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfx_largeout.distribute.global_batch import Parts, gather_labels
from tfx_largeout.distribute.meeting import check_alike
from tfx_largeout.distribute.row_routes import RowRoutes
from tfx_largeout.heads.base import HeadOutput
from tfx_largeout.heads.over_workers import labels_of_all, local_examples
from tfx_largeout.labels import Labels
from tfx_largeout.ops.checks import check_finite
from tfx_largeout.ops.class_rows import ClassRows
from tfx_largeout.ops.factored.factored_coordinates_composed import current_rows, settle
from tfx_largeout.ops.factored.factored_state import FactoredState
from tfx_largeout.ops.factored.factored_update_composed import (
    Examples,
    Sums,
    hidden_gradient,
    statistics_of_examples,
    sums_of,
    take_step,
)
from tfx_largeout.run_time_checks import after
from tfx_largeout.statistics import SphericalStatistics


class LabelsOfParts(Labels):
    """The labels of the examples of all workers; only this worker's h is available."""

    parts: Parts

    @classmethod
    def of(cls, labels: Labels, parts: Parts) -> LabelsOfParts:
        """Returns the labels and which worker has each example."""
        spread = cls(*labels)
        spread.parts = parts
        return spread


class FactoredOverWorkers:
    """The steps of a factored layer whose rows of V are spread over workers.

    Every worker has the rest of the state, bit for bit the same. `slot_rows` counts the rows of all
    workers. The given state is the worker's, in Keras variables.
    """

    def __init__(self, rows: ClassRows, state: FactoredState, site: str) -> None:
        self._workers, self._shard, self._site = rows.workers, rows.shard, site
        self._num_classes = rows.num_classes
        self._shared = [
            getattr(state, name) for name in state._fields if name not in ("v", "row_slot")
        ]
        self._state = state.variables

    def statistics(
        self, hidden: tf.Tensor, labels: Labels
    ) -> tuple[tuple[tf.Tensor, tf.Tensor, tf.Tensor], tuple[Any, ...]]:
        """Returns a `[N, K]`, q `[N]` and s `[N]` of all examples, and residuals.

        Takes h `[n, D]` of this worker, and all labels. Two collectives: one fetches the rows of
        labels, one gathers the results of all examples.
        """
        parts = _parts(labels)
        routes = RowRoutes(self._workers, self._shard, labels.ids, parts, self._site)
        rows = self._label_rows(routes)
        *own, gram_hidden, _ = statistics_of_examples(self._state, hidden, rows, routes.places)
        columns = [own[0], own[1][:, tf.newaxis], own[2][:, tf.newaxis]]
        every = parts.gathered(tf.concat(columns, axis=1), f"{self._site}/statistics")
        # All workers raise an error found by one of them.
        finite = check_finite("hidden, or the sum of squares of its logits,", every[:, -2])
        with after([finite]):
            every = tf.identity(every)
        values = (every[:, :-2], every[:, -2], every[:, -1])
        return values, (routes, gram_hidden, rows)

    def backward(
        self,
        hidden: tf.Tensor,
        labels: Labels,
        residuals: tuple[Any, ...],
        is_present: tf.Tensor,
        gradients: tuple[tf.Tensor, ...],
        step: tuple[Any, float, float | None] | None,
    ) -> tf.Tensor:
        """Takes the step; returns dL/dH of this worker's examples, `[n, D]`.

        Two collectives: one sends x_y to the rows of labels, one sums over the batch. The gradients
        are with respect to the results of `statistics`; `is_present` says whether the state is
        unchanged since then. A step is the learning rate, the decay and `max_condition`.
        """
        parts, (routes, gram_hidden, rows) = _parts(labels), residuals
        gram_hidden, rows = tf.cond(
            is_present,
            lambda: (gram_hidden, rows),
            lambda: (
                tf.matmul(hidden, self._state.gram.read_value()),
                self._label_rows(routes),
            ),
        )
        names = ("dL/da", "dL/dq", "dL/ds")
        with after([check_finite(n, g) for n, g in zip(names, gradients, strict=True)]):
            g_target = tf.where(labels.mask, gradients[0], 0)
        own = [tf.gather(g, parts.own) for g in (g_target, *gradients[1:])]
        examples = Examples(hidden, gram_hidden, rows, routes.places, *own)
        gradient = hidden_gradient(self._state, examples)
        if step is not None:
            # The gradient is taken before the state changes.
            with tf.control_dependencies([gradient]):
                taken = self._step(examples, routes, *step)
            with tf.control_dependencies([taken]):
                gradient = tf.identity(gradient)
        return gradient

    def settle(self) -> None:
        """As `settle`; on all workers. Cost: nothing if no worker has a stale row."""
        settle(self._state, self._num_classes)

    def check_alike(self) -> None:
        """Raises an error if the state besides rows differs between workers in any bit."""
        check_alike(self._workers, self._shared)

    def of_global_batch(self, hidden: tf.Tensor, labels: Labels) -> tuple[tf.Tensor, LabelsOfParts]:
        """Returns this worker's part of the examples of the global batch, and their labels.

        The gradient with respect to its h is this worker's part of the gradient of h, which is
        summed over workers.
        """
        parts = Parts.even(self._workers, tf.shape(hidden)[0])
        return _some_rows(hidden, parts.own), LabelsOfParts.of(labels, parts)

    def _label_rows(self, routes: RowRoutes) -> tf.Tensor:
        return routes.fetch(current_rows(self._state, routes.rows), "rows")

    def _step(
        self,
        examples: Examples,
        routes: RowRoutes,
        rate: Any,
        decay: float,
        max_condition: float | None,
    ) -> tf.Tensor:
        row_sums = routes.push(examples.label_sums, "label_sums")
        sums = sums_of(self._state, examples, routes.rows, row_sums)
        flat = self._workers.sum(sums.flat, f"{self._site}/sums")
        return take_step(
            self._state,
            Sums.of_flat(flat, self._state.width),
            routes.rows,
            row_sums,
            self._num_classes,
            tf.cast(rate, self._state.dtype),
            tf.constant(decay, self._state.dtype),
            max_condition,
        )


def _parts(labels: Labels) -> Parts:
    assert isinstance(labels, LabelsOfParts)  # made by `FactoredHead.statistics`
    return labels.parts


class OutputOfParts(HeadOutput):
    """The output of a factored head for the examples of all workers.

    Spherical statistics are computed where the examples are. For other kinds h is gathered, once.
    """

    def __init__(
        self, head: Any, own: tf.Tensor, training: bool, parts: Parts, excluded: tf.Tensor | None
    ) -> None:
        # Only the batch shape of the gathered h is read.
        hidden = tf.zeros([tf.size(parts.ranks), 1])
        super().__init__(head, hidden, training, excluded_of_all=excluded)
        self._own, self._parts, self._gathered = own, parts, None

    @property
    def flat_hidden(self) -> tf.Tensor:
        """H of all examples, `[N, D]`. It has no gradient."""
        if self._gathered is None:
            own = tf.stop_gradient(self._own)
            self._gathered = self._parts.gathered(own, f"{self.head.name}/hidden")
        return tf.ensure_shape(self._gathered, [None, self._own.shape[1]])

    def statistics(
        self, kind: type, y_true: Any, check: Callable[[Labels], Labels] | None = None
    ) -> Any:
        """As `HeadOutput`."""
        if kind is not SphericalStatistics:
            return super().statistics(kind, y_true, check)
        labels = self.labels(y_true)
        labels = LabelsOfParts.of(labels if check is None else check(labels), self._parts)
        return self.head.statistics(kind, self._own, labels, self.training)


def whole_batch_of_parts(
    output: HeadOutput, y_true: Any, sample_weight: Any, mask: Any, filtered: bool
) -> tuple[OutputOfParts, Labels, tf.Tensor | None, tf.Tensor | None]:
    """As `whole_batch`, without sending h."""
    head = output.head
    when, of_labels = local_examples(output, y_true, sample_weight, mask, filtered)
    batch = gather_labels(head.workers, head.name, *when, *of_labels)
    hidden = tf.cast(output.flat_hidden, head.statistics_dtype)
    # The gradient is multiplied by R, as in `gather_examples`.
    own = _some_rows(hidden, batch.kept, head.workers.size)
    labels, excluded = labels_of_all(head, batch, filtered)
    whole = OutputOfParts(head, own, output.training, batch.parts, excluded)
    return whole, labels, batch.weights, batch.mask


def _some_rows(hidden: tf.Tensor, rows: tf.Tensor | None, factor: int = 1) -> tf.Tensor:
    """Returns distinct rows of h (None: all), with a dense gradient multiplied by a factor."""

    @tf.custom_gradient
    def run(hidden: tf.Tensor) -> Any:
        def gradient(upstream: tf.Tensor) -> tf.Tensor:
            upstream = upstream * tf.constant(factor, hidden.dtype)
            if rows is None:
                return upstream
            return tf.scatter_nd(rows[:, tf.newaxis], upstream, tf.shape(hidden, tf.int64))

        return tf.identity(hidden) if rows is None else tf.gather(hidden, rows), gradient

    return run(hidden)
