# SPDX-License-Identifier: Apache-2.0
"""Losses from exact log Z, from log-probabilities, or computed by the head."""

from __future__ import annotations

from typing import Any, ClassVar

import keras
import tensorflow as tf

from tfx_largeout.arguments import choice_argument, number_argument
from tfx_largeout.labels import Labels
from tfx_largeout.losses.base import PROBABILITIES, HeadLoss
from tfx_largeout.losses.margins import MarginLoss
from tfx_largeout.ops.exact.logit_blocks import NO_LOGIT
from tfx_largeout.statistics import (
    LogProbabilityStatistics,
    MarginStatistics,
    MeanLogitStatistics,
    PerExampleLoss,
    SoftmaxStatistics,
)


@keras.saving.register_keras_serializable(package="tfx_largeout")
class SoftmaxCrossentropy(MarginLoss):
    """The exact softmax cross-entropy, for heads that give `SoftmaxStatistics`.

    loss = -sum_c ((1 - eps) t_c + eps / C) log q_c + gamma (log Z)^2,
    log q_c = o_c - log Z,  log Z = log sum_c exp(o_c)

    The target distribution t is spread evenly over the labels Y of the example, or given by soft
    labels: probabilities p_y of ids, such as a teacher's best classes. The remaining 1 - sum_y p_y
    is ignored, or with `remaining="spread"` spread evenly over the classes that are not among the
    ids of the example (if there are none, ignored). A share eps of the target is spread evenly over
    all C classes (label smoothing, as in Keras's losses). Spreading needs a head that gives
    `MeanLogitStatistics`, such as `DenseHead` and `ExactSoftmaxHead`.

    The penalty keeps log Z near 0, so that logits don't drift in low precision. For language models
    it is called z-loss; it is not `ZLoss`.

    In evaluation there is no margin; otherwise the loss is the same function. The metric
    `ExactLoss` has none of these options.

    ```python
    model.compile("adam", loss=SoftmaxCrossentropy(log_partition_penalty=1e-4))
    ```

    Args:
        log_partition_penalty: gamma, at least 0. Default 0.
        label_smoothing: eps, at least 0 and below 1. Default 0.
        remaining: What to do with the remaining probability 1 - sum_y p_y of soft labels:
            `"ignore"` (default) or `"spread"`. Labels without probabilities leave none.
        cosine_margin, angular_margin: As `MarginLoss`. Default 0. Then log Z includes the
            margin.
        **kwargs: As `HeadLoss`: `reduction`, `ignore_class`, `class_weights`, ...

    Raises:
        ValueError: `log_partition_penalty`, `label_smoothing` or a margin is out of range,
            `remaining` is neither of the two, or spreading is combined with a margin.
        TypeError: As `MarginLoss`.

    References:
        Chowdhery et al. 2022, PaLM: Scaling Language Modeling with Pathways, section 5 (gamma =
        1e-4).
        Szegedy et al. 2016, Rethinking the Inception Architecture for Computer Vision, section 7
        (label smoothing, eps = 0.1).
        Hinton, Vinyals, Dean 2015, Distilling the Knowledge in a Neural Network (soft labels).
    """

    # MeanLogitStatistics with spreading; MarginStatistics with a margin.
    trains_on: type = SoftmaxStatistics
    takes_values: ClassVar[str | None] = PROBABILITIES

    def __init__(
        self,
        log_partition_penalty: float = 0.0,
        label_smoothing: float = 0.0,
        remaining: str = "ignore",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.log_partition_penalty = number_argument(
            "log_partition_penalty", log_partition_penalty, at_least=0
        )
        self.label_smoothing = number_argument(
            "label_smoothing", label_smoothing, at_least=0, below=1
        )
        self.remaining = choice_argument("remaining", remaining, ("ignore", "spread"))
        if self.label_smoothing or self.remaining == "spread":
            self.trains_on = self.evaluates_on = MeanLogitStatistics
        if self.has_margin:
            if self.trains_on is MeanLogitStatistics:
                raise ValueError(
                    "label_smoothing must be 0 and remaining 'ignore' beside a margin; got "
                    f"{self.label_smoothing:g} and {self.remaining!r} with cosine_margin="
                    f"{self.cosine_margin:g} and angular_margin={self.angular_margin:g}"
                )
            self.trains_on = MarginStatistics

    def from_statistics(self, statistics: Any) -> tf.Tensor:
        if isinstance(statistics, MarginStatistics):
            statistics = self._softmax_with_margin(statistics)
        labels, log_z = statistics.labels, statistics.log_partition
        loss = log_z - labels.mean(statistics.target_logits)
        if labels.values is not None:
            mass = tf.cast(labels.mass, loss.dtype)
            loss *= mass
            if self.remaining == "spread":
                loss += tf.maximum(1 - mass, 0) * _even_over_others(statistics)
        if self.label_smoothing:
            loss += self.label_smoothing * (log_z - statistics.mean_logit - loss)
        if not self.log_partition_penalty:
            return loss
        return loss + self.log_partition_penalty * log_z**2

    def exact(self, statistics: Any) -> tf.Tensor:
        return self.from_statistics(statistics)

    def _softmax_with_margin(self, statistics: MarginStatistics) -> SoftmaxStatistics:
        labels, targets, rest, scale = statistics
        targets = self.with_margin(targets, scale)
        of_labels = tf.where(labels.mask, targets, NO_LOGIT)
        every = tf.concat([of_labels, rest[:, tf.newaxis]], axis=1)
        return SoftmaxStatistics(labels, targets, tf.reduce_logsumexp(every, axis=1))

    def of_probabilities(self, values: tf.Tensor, labels: Labels) -> tf.Tensor:
        return values  # already of all C classes

    def get_config(self) -> dict[str, Any]:
        config = super().get_config()
        if self.remaining == "ignore":  # left out, since a subclass need not take it
            config.pop("remaining", None)
        return config

    def _why_this_kind(self) -> str:
        if self.remaining == "spread":
            return "remaining='spread' takes the mean of all logits. "
        if not self.label_smoothing:
            return ""
        return f"label_smoothing={self.label_smoothing:g} takes the mean of all logits. "


def _even_over_others(statistics: MeanLogitStatistics) -> tf.Tensor:
    """Returns the cross-entropy of a target that is uniform over the classes that are not labels.

    `[N]`; 0 if all classes are labels.
    """
    labels, mean_logit = statistics.labels, statistics.mean_logit
    number = statistics.num_classes - tf.cast(labels.counts, mean_logit.dtype)
    of_labels = tf.reduce_sum(tf.where(labels.mask, statistics.target_logits, 0), axis=-1)
    of_others = tf.math.divide_no_nan(statistics.num_classes * mean_logit - of_labels, number)
    return tf.where(number > 0, statistics.log_partition - of_others, 0)


@keras.saving.register_keras_serializable(package="tfx_largeout")
class NegativeLogLikelihood(HeadLoss):
    """The negative log-likelihood, for heads that give `LogProbabilityStatistics`.

    loss = -1/|Y| sum_{c in Y} log p(c | h): the target distribution is spread evenly over the
    labels Y of the example.

    In evaluation it is the same, and for any head it is the cross-entropy of the probabilities
    exp(o_c) / Z. For soft labels it is -sum_y p_y log p(y | h).

    Args and errors: as `HeadLoss`.
    """

    trains_on: type = LogProbabilityStatistics
    takes_values: ClassVar[str | None] = PROBABILITIES

    def from_statistics(self, statistics: LogProbabilityStatistics) -> tf.Tensor:
        return -statistics.labels.mean(statistics.target_log_probabilities)


@keras.saving.register_keras_serializable(package="tfx_largeout")
class TFCandidateSamplingLoss(HeadLoss):
    """The loss of `TFSampledSoftmaxHead` or `TFNCEHead`, as `tf.nn` computes it.

    In evaluation it is the exact softmax cross-entropy for both, so that heads can be compared:
    sampled losses are on different scales.

    In training `class_weights` multiply the loss of an example by the mean weight of all its
    labels, even if the head uses only some of them.

    Args and errors: as `HeadLoss`.
    """

    trains_on: type = PerExampleLoss

    def from_statistics(self, statistics: PerExampleLoss) -> tf.Tensor:
        return statistics.values
