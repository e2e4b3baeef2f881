# SPDX-License-Identifier: Apache-2.0
"""Probe: compares the training loss and its gradient with the exact ones, during training."""

from __future__ import annotations

import time
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from tfx_largeout.arguments import integer_argument, number_argument
from tfx_largeout.callbacks.step_measurements import StepMeasurements
from tfx_largeout.distribute.workers import require_alone
from tfx_largeout.heads.base import Head, HeadOutput, examples_that_count, head_output
from tfx_largeout.heads.candidate_head import CandidateHead
from tfx_largeout.heads.keras_losses_and_metrics import only_loss
from tfx_largeout.heads.kernel_head import KernelHead
from tfx_largeout.labels import Labels
from tfx_largeout.losses.base import HeadLoss
from tfx_largeout.ops.exact.exact_hidden_gradient import exact_hidden_gradient
from tfx_largeout.run_time_checks import Check, after
from tfx_largeout.statistics import ExactStatistics

_RECALL_AT = 10
_MOST_OF_BUCKET = 0.1
_MOST_UNREACHABLE = 0.5


class Probe(StepMeasurements):
    """Logs the exact loss beside the training loss, and the quality of the gradient.

    A loss over candidates has a different scale from the exact loss, and its gradient is an
    estimate. On a few examples, every `every` steps, the probe computes the gradient with respect
    to h of the training loss (`draws` times, with different candidates) and of the exact softmax
    cross-entropy, and logs

    | name | what |
    |---|---|
    | `probe_loss` | the training loss, mean over examples and draws |
    | `probe_exact_loss` | the softmax cross-entropy over all classes, with the loss's weights |
    | `probe_cosine` | of the angle between the two gradients `[N, D]`, mean over draws |
    | `probe_relative_bias` | norm of (mean over draws - exact) / norm of exact |
    | `probe_recall_at_10` | share of the 10 best classes, labels aside, that are candidates |
    | `probe_index_*` | of the head's index, if it has one: see `health` of the index |
    | `probe_share_of_time` | of the time since training began, spent in the probe |

    A margin of the loss is left out. The mean over a few draws still has noise, which is part of
    the relative bias: it falls with 1 / sqrt(draws) down to the bias itself. Nothing is updated.

    A degenerate index (a bucket with more than a tenth of the classes, without short rows if there
    are `length_ranges`; or half of the classes in no bucket) gives one warning. The recall shows
    whether short rows matter.

    The values go to TensorBoard if there is a `log_dir`, with the number of the step, and the last
    ones into the logs of each epoch, for `History` and callbacks after this one.

    Cost: O(N C D) per probe. To stay below `max_share` of the time, the probe may wait longer than
    `every` steps; the first probe, which traces the graph, is not counted.

    Args:
        x: Inputs of a few examples for the model, such as 64.
        y: Their labels. Examples without labels, or left out by a Keras mask, don't count.
        every: The smallest number of steps between probes. Default 100.
        draws: The number of draws of the training loss. Default 4.
        max_share: The largest share of the training time for probes. Default 0.01.
        log_dir: Folder for TensorBoard's event files. Default None: none are written.

    Raises:
        ValueError: An argument is out of range.
        TypeError: When training begins: the model's last layer is not a head with W and b
            (`KernelHead`), or its loss is not a `HeadLoss`.
    """

    def __init__(
        self,
        x: Any,
        y: Any,
        every: int = 100,
        draws: int = 4,
        max_share: float = 0.01,
        log_dir: str | Path | None = None,
    ) -> None:
        super().__init__(log_dir)
        self.x, self.y = x, y
        self.every = integer_argument("every", every, at_least=1)
        self.draws = integer_argument("draws", draws, at_least=1)
        self.max_share = number_argument("max_share", max_share, above=0)
        self._warned = False

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        require_alone("Probe")
        require_head_loss(self.model, "Probe")
        self.open_log()
        self._measure = tf.function(self._measured, autograph=False)
        self._values = self._run()
        self._start, self._spent, self._longest = time.perf_counter(), 0.0, 0.0
        self._step = self._next = 0

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        self._step += 1
        if self._step < self._next:
            return
        begin = time.perf_counter()
        if self._spent + self._longest > self.max_share * (begin - self._start):
            return  # not yet: it would exceed its share
        self._next = self._step + self.every
        self._values = self._run()
        cost = time.perf_counter() - begin
        self._spent, self._longest = self._spent + cost, max(self._longest, cost)
        self._log()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        if logs is not None:
            logs.update(self._values)

    def _run(self) -> dict[str, float]:
        values = self._measure(self.x, self.y)
        return {f"probe_{name}": float(value) for name, value in values.items()}

    def _log(self) -> None:
        elapsed = time.perf_counter() - self._start
        self._values["probe_share_of_time"] = self._spent / elapsed
        self._warn()
        self.note(self._step, self._values)

    def _warn(self) -> None:
        largest = self._values.get("probe_index_largest_bucket", 0)
        unreachable = self._values.get("probe_index_unreachable", 0)
        if self._warned or (largest <= _MOST_OF_BUCKET and unreachable <= _MOST_UNREACHABLE):
            return
        self._warned = True
        warnings.warn(
            "the head's index has degenerated, so that its candidates say little: "
            f"{largest:.0%} of the classes share one bucket and {unreachable:.0%} are in none; "
            "use more hashes_per_table, by inner products more length_ranges, and rows that are "
            "not 0",
            RuntimeWarning,
            stacklevel=2,
        )

    def _measured(self, x: Any, y: Any) -> dict[str, tf.Tensor]:
        batch = ProbedBatch.of(self.model, x, y, "Probe")
        exact_gradient = batch.exact_gradient
        drawn = [batch.drawn(draw) for draw in range(1, self.draws + 1)]
        losses = [tf.reduce_mean(values) for values, _ in drawn]
        gradients = [gradient for _, gradient in drawn]
        bias = tf.add_n(gradients) / self.draws - exact_gradient
        cosines = [_cosine(gradient, exact_gradient) for gradient in gradients]
        return {
            "loss": tf.add_n(losses) / self.draws,
            "exact_loss": tf.reduce_mean(batch.weighted(batch.exact.cross_entropy())),
            "cosine": tf.add_n(cosines) / self.draws,
            "relative_bias": tf.norm(bias) / tf.norm(exact_gradient),
            **_of_candidates(batch.head, batch.hidden, batch.labels),
        }


def _of_candidates(head: KernelHead, hidden: tf.Tensor, labels: Labels) -> dict[str, tf.Tensor]:
    if not isinstance(head, CandidateHead):
        return {}
    best = head.top_k(hidden, min(_RECALL_AT, head.num_classes)).ids
    candidates = head.candidates(hidden, labels).ids
    if candidates.shape.rank == 1:
        candidates = candidates[tf.newaxis]
    is_label = tf.reduce_any(best[:, :, tf.newaxis] == labels.ids[:, tf.newaxis], axis=2)
    is_there = tf.reduce_any(best[:, :, tf.newaxis] == candidates[:, tf.newaxis], axis=2)
    negatives = tf.math.count_nonzero(~is_label)
    values = {"recall_at_10": tf.math.count_nonzero(is_there & ~is_label) / negatives}
    if head.index is not None:
        health = head.index.health(head.kernel, head.bias)
        values |= {f"index_{name}": value for name, value in health.items()}
    return values


def _cosine(a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
    return tf.math.divide_no_nan(tf.reduce_sum(a * b), tf.norm(a) * tf.norm(b))


class ProbedBatch(NamedTuple):
    """The exact loss and gradient of a head on a few examples. Nothing is updated."""

    head: KernelHead
    loss: HeadLoss
    hidden: tf.Tensor  # h [N, D] float32, of examples that have labels and are not masked
    labels: Labels
    exact: ExactStatistics
    exact_gradient: tf.Tensor  # [N, D], of the softmax cross-entropy with respect to h

    @classmethod
    def of(cls, model: keras.Model, x: Any, y: Any, asked_by: str) -> ProbedBatch:
        """Creates it for a model with a `HeadLoss`, for `asked_by`. Cost: O(N C D).

        Raises:
            TypeError: The model's last layer is not a head with W and b.
            tf.errors.InvalidArgumentError: No example has a label of a weight above 0. Raised when
                the graph runs.
        """
        logits = model(x, training=False)
        output = output_of(logits, KernelHead, "a head with W and b", asked_by)
        output.head.refuse_soft_cap(asked_by)
        loss = only_loss(model)
        labels = output.for_loss(loss.ignore_class).labels(y)
        if labels.values is not None:
            raise TypeError(
                f"{asked_by} needs class ids as labels; got labels with values, such as soft labels"
            )
        labels = loss.checked(labels, output.head.num_classes)
        counts = examples_that_count(logits, output) & (labels.counts > 0)
        weights = tf.cast(counts, tf.float32) if labels.weights is None else labels.mean_weight
        has_some = tf.reduce_any(counts & (weights > 0))
        rule = f"{asked_by} needs at least one example with a label of a weight above 0; got"
        with after([Check(has_some, lambda: [rule, tf.shape(counts), "without"])]):
            hidden = tf.boolean_mask(tf.cast(output.flat_hidden, tf.float32), counts)
        hidden, labels = tf.stop_gradient(hidden), labels.where(counts)
        exact = output.head.statistics(ExactStatistics, hidden, labels, training=False)
        gradient = exact_hidden_gradient(
            hidden, labels, exact.log_partition, output.head.kernel, output.head.bias
        )
        return cls(output.head, loss.without_margin(), hidden, labels, exact, gradient)

    def weighted(self, values: tf.Tensor) -> tf.Tensor:
        """Returns values `[N]` times the weights of the examples, by the loss's `class_weights`."""
        weights = self.labels.mean_weight
        return values if weights is None else values * tf.cast(weights, values.dtype)

    def drawn(self, draw: int) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the training loss `[N]` and its gradient `[N, D]` with respect to h.

        Each draw above 0 has other candidates; 0 has the candidates of training.
        """
        with self.head.without_update(draw), tf.GradientTape() as tape:
            tape.watch(self.hidden)
            kind = self.loss.trains_on
            statistics = self.head.statistics(kind, self.hidden, self.labels, training=True)
            values = self.weighted(self.loss.from_statistics(statistics))
        return values, tape.gradient(values, self.hidden)


def require_head_loss(model: keras.Model, asked_by: str) -> None:
    """Raises a TypeError if the loss of a model is not a `HeadLoss`."""
    loss = only_loss(model)
    if not isinstance(loss, HeadLoss):
        raise TypeError(f"{asked_by} needs a model with a HeadLoss; got {loss!r}")


def output_of(logits: Any, kind: type[Head], what: str, asked_by: str) -> HeadOutput:
    """Returns the output of a head of a kind; else raises a TypeError with `what`."""
    output = head_output(logits)
    if output is None or not isinstance(output.head, kind):
        found = "no head" if output is None else type(output.head).__name__
        raise TypeError(f"{asked_by} needs a model whose last layer is {what}; got {found}")
    return output
