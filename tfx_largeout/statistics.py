# SPDX-License-Identifier: Apache-2.0
"""Statistics of the logits that a head passes to a loss: a few numbers per example.

Each class here is a kind of statistics. `Head.gives` lists the kinds that a head gives in training;
it also gives `ExactStatistics` always, and `MeanLogitStatistics` in every evaluation. A loss has
the kind that it needs in training (`HeadLoss.trains_on`) and in evaluation
(`HeadLoss.evaluates_on`). So every loss works with every head that gives its kinds. The first field
of a kind is `labels`. N is the number of examples (batch dimensions flattened), K the number of
labels per example.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import tensorflow as tf

from tfx_largeout.distribute.workers import ALONE, Workers
from tfx_largeout.labels import Labels
from tfx_largeout.run_time_checks import Check, after

__all__ = [
    "CandidateStatistics",
    "ExactStatistics",
    "LogProbabilityStatistics",
    "MeanLogitStatistics",
    "SoftmaxStatistics",
    "SphericalStatistics",
]


class SoftmaxStatistics(NamedTuple):
    """The statistics for the exact softmax.

    Attributes:
        labels: The labels, normal form.
        target_logits: `[N, K]` float32, o at the labels; undefined at padding.
        log_partition: `[N]` float32, log Z = log sum_c exp(o_c).
    """

    labels: Labels
    target_logits: tf.Tensor
    log_partition: tf.Tensor


class MeanLogitStatistics(NamedTuple):
    """The statistics for the exact softmax, and the mean logit of all classes.

    Attributes:
        labels, target_logits, log_partition: As `SoftmaxStatistics`.
        mean_logit: `[N]` float32, 1/C sum_c o_c.
        num_classes: C.
    """

    labels: Labels
    target_logits: tf.Tensor
    log_partition: tf.Tensor
    mean_logit: tf.Tensor
    num_classes: int


class MarginStatistics(NamedTuple):
    """The statistics for a softmax with a margin, from heads with logits s cos(theta).

    A margin changes only the logits of the labels. Z without them can't be computed from Z: if a
    label's share in Z rounds to 1, the others are lost, although with the margin they may be most
    of it.

    Attributes:
        labels: The labels, normal form.
        target_logits: `[N, K]` float32, o at the labels; undefined at padding.
        log_rest: `[N]` float32, log sum exp(o_c) over all c that are not labels of the example; at
            most -1e29 if there is none.
        scale: `[]`, s.
    """

    labels: Labels
    target_logits: tf.Tensor
    log_rest: tf.Tensor
    scale: tf.Tensor


class SphericalStatistics(NamedTuple):
    """The statistics for losses of the spherical family: see docs/papers/exact_gradient.md.

    The floats are float32, or float64 from a float64 head.

    Attributes:
        labels: The labels, normal form.
        target_logits: `[N, K]`, o at the labels; 0 at padding.
        sum_of_squares: `[N]`, q = sum_c o_c^2.
        sum_of_logits: `[N]`, s = sum_c o_c.
        num_classes: C.
    """

    labels: Labels
    target_logits: tf.Tensor
    sum_of_squares: tf.Tensor
    sum_of_logits: tf.Tensor
    num_classes: int


class CandidateStatistics(NamedTuple):
    """The statistics for estimators: logits of labels and of S candidate classes.

    The candidates are shared by the batch, `[S]`, or per example, `[N, S]`. The *expected count* of
    a class is the expected number of times that it is among the candidates: the probability of
    being one of them if each class can be drawn only once. The floats are float32, or float64 from
    a float64 head.

    Attributes:
        labels: The labels, normal form.
        true_logits: `[N, K]`, o at the labels; 0 at padding.
        candidate_logits: `[N, S]`, o at the candidates; 0 for no class.
        candidate_ids: `[S]` or `[N, S]` int64; -1: no class.
        hits: `[N, S]` bool: the candidate is one of the example's labels (an accidental hit).
        true_log_expected: `[N, K]`, log expected counts of the labels; 0 at padding.
        candidate_log_expected: `[S]` or `[N, S]`, log expected counts of the candidates; 0 for no
            class.
        log_partition: `[]`, a trainable number of the head, for losses that learn log Z.
        num_classes: C.
        workers: The workers over which the classes are spread. The candidates are then classes of
            this worker, everything else is the same on all workers, and sums over candidates must
            be added up over workers: see `HeadLoss.sums_over_workers`.
        scale: `[]`, the s of logits s cos(theta); None for other heads.
    """

    labels: Labels
    true_logits: tf.Tensor
    candidate_logits: tf.Tensor
    candidate_ids: tf.Tensor
    hits: tf.Tensor
    true_log_expected: tf.Tensor
    candidate_log_expected: tf.Tensor
    log_partition: tf.Tensor
    num_classes: int
    workers: Workers = ALONE
    scale: tf.Tensor | None = None

    @property
    def negatives(self) -> tf.Tensor:
        """`[N, S]` bool: the candidates that are not padding and not hits."""
        return (self.candidate_ids >= 0) & ~self.hits


class LogProbabilityStatistics(NamedTuple):
    """The statistics of a head that computes probabilities without a sum over all classes.

    Attributes:
        labels: The labels, normal form.
        target_log_probabilities: `[N, K]` float32 (float64 from a float64 head), log p of the
            labels; 0 at padding.
    """

    labels: Labels
    target_log_probabilities: tf.Tensor


class PerExampleLoss(NamedTuple):
    """The loss itself, from a head that computes it (TensorFlow's functions).

    Attributes:
        labels: The labels, normal form.
        values: `[N]` float32.
    """

    labels: Labels
    values: tf.Tensor


class ExactStatistics(NamedTuple):
    """The statistics that every head gives, from one pass over all classes. They have no gradient.

    They include all of `SoftmaxStatistics`.

    Attributes:
        labels: The labels, normal form.
        target_logits: `[N, K]` float32, o at the labels; 0 at padding.
        log_partition: `[N]` float32, log Z = log sum_c exp(o_c).
        target_ranks: `[N, K]` int64, the number of classes that score higher than the label, ties
            by lower id: 0 is the best; -1 at padding.
    """

    labels: Labels
    target_logits: tf.Tensor
    log_partition: tf.Tensor
    target_ranks: tf.Tensor

    @property
    def of_positive_targets(self) -> ExactStatistics:
        """The same; for targets with values, only labels with values above 0."""
        if self.labels.values is None:
            return self
        labels = self.labels.positive
        logits = tf.where(labels.mask, self.target_logits, 0)
        ranks = tf.where(labels.mask, self.target_ranks, -1)
        return self._replace(labels=labels, target_logits=logits, target_ranks=ranks)

    def cross_entropy(self) -> tf.Tensor:
        """Returns the softmax cross-entropy of each example, `[N]`.

        log Z - 1/|Y| sum_{c in Y} o_c: the target distribution is uniform over the labels Y, or
        proportional to their values.
        """
        return self.log_partition - self.labels.mean(self.target_logits)


class TopScores(NamedTuple):
    """The k best classes of each example, and the partition function from the same pass.

    Attributes:
        scores: `[N, k]` float32, logits, descending.
        ids: `[N, k]` int64, ties by lower id.
        log_partition: `[N]` float32, log Z; None from a search that does not read all classes.
    """

    scores: tf.Tensor
    ids: tf.Tensor
    log_partition: Any


def only_first_derivative(head: str, gradient: tf.Tensor, *inputs: tf.Tensor) -> tf.Tensor:
    """Returns a gradient by a head; a derivative of it that is not 0 raises an error.

    Args:
        head: The name of the head, for the error.
        gradient: The gradient.
        inputs: All tensors that it depends on.
    """

    @tf.custom_gradient
    def once(gradient: tf.Tensor, *inputs: tf.Tensor) -> Any:
        def second(upstream: tf.Tensor) -> tuple[tf.Tensor | None, ...]:
            rule = (
                f"{head} computes its own gradient, which has no derivative; got a gradient of a "
                "gradient, such as a gradient penalty. Use DenseHead."
            )
            with after([Check(tf.reduce_all(tf.equal(upstream, 0)), lambda: [rule])]):
                return None, *map(tf.zeros_like, inputs)

        return tf.identity(gradient), second

    return once(tf.stop_gradient(gradient), *inputs)


def without_gradient(statistics: Any) -> Any:
    """Returns the same statistics; a gradient through them raises a LookupError."""

    def prevent(value: Any) -> Any:
        if not tf.is_tensor(value) or not value.dtype.is_floating:
            return value
        return tf.raw_ops.PreventGradient(
            input=value, message="an exact loss has no gradient: call the model with training=True"
        )

    return type(statistics)(*(prevent(value) for value in statistics))
