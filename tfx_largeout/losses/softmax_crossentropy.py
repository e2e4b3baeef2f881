# SPDX-License-Identifier: Apache-2.0
"""Losses of heads that give what they need: log Z, log-probabilities, or the loss itself."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from tfx_largeout.arguments import number_argument
from tfx_largeout.losses.base import HeadLoss
from tfx_largeout.statistics import (
    LogProbabilityStatistics,
    MeanLogitStatistics,
    PerExampleLoss,
    SoftmaxStatistics,
)


@keras.saving.register_keras_serializable(package="tfx_largeout")
class SoftmaxCrossentropy(HeadLoss):
    """The exact softmax cross-entropy, for heads that give `SoftmaxStatistics`.

    loss = log Z - (1 - eps) 1/|Y| sum_{c in Y} o_c - eps 1/C sum_c o_c + gamma (log Z)^2,
    log Z = log sum_c exp(o_c)

    The target distribution is spread evenly over the labels Y of the example, but for a share eps,
    which is spread evenly over all C classes (label smoothing, as in Keras's losses). It takes a
    head that gives `MeanLogitStatistics`, as `DenseHead` and `ExactSoftmaxHead` do.

    The penalty keeps log Z near 0, which keeps the logits from drifting in low precision. Language
    models call it the z-loss; it has nothing to do with `ZLoss`.

    In evaluation the loss is the same function; the metric `ExactLoss` leaves both out.

    ```python
    model.compile("adam", loss=SoftmaxCrossentropy(log_partition_penalty=1e-4))
    ```

    Args:
        log_partition_penalty: gamma, at least 0. Default 0.
        label_smoothing: eps, at least 0 and below 1. Default 0.
        **kwargs: As `HeadLoss`: `reduction`, `ignore_class`, `class_weights`, ...

    Raises:
        ValueError: `log_partition_penalty` or `label_smoothing` is no such number.

    References:
        Chowdhery et al. 2022, PaLM: Scaling Language Modeling with Pathways, section 5 (gamma =
        1e-4).
        Szegedy et al. 2016, Rethinking the Inception Architecture for Computer Vision, section 7
        (label smoothing, eps = 0.1).
    """

    trains_on: type = SoftmaxStatistics  # with smoothing: MeanLogitStatistics

    def __init__(
        self, log_partition_penalty: float = 0.0, label_smoothing: float = 0.0, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.log_partition_penalty = number_argument(
            "log_partition_penalty", log_partition_penalty, at_least=0
        )
        self.label_smoothing = number_argument(
            "label_smoothing", label_smoothing, at_least=0, below=1
        )
        if self.label_smoothing:
            self.trains_on = self.evaluates_on = MeanLogitStatistics

    def from_statistics(self, statistics: Any) -> tf.Tensor:
        log_z, target = statistics.log_partition, statistics.labels.mean(statistics.target_logits)
        if self.label_smoothing:
            target += self.label_smoothing * (statistics.mean_logit - target)
        if not self.log_partition_penalty:
            return log_z - target
        return log_z - target + self.log_partition_penalty * log_z**2

    def _why_this_kind(self) -> str:
        if not self.label_smoothing:
            return ""
        return f"label_smoothing={self.label_smoothing:g} takes the mean of all logits. "


@keras.saving.register_keras_serializable(package="tfx_largeout")
class NegativeLogLikelihood(HeadLoss):
    """The negative log-likelihood, for heads that give `LogProbabilityStatistics`.

    loss = -1/|Y| sum_{c in Y} log p(c | h): the target distribution is spread evenly over the
    labels Y of the example.

    It is the same number in evaluation, where it is the cross-entropy of the probabilities
    exp(o_c) / Z of any head.

    Args and errors: as `HeadLoss`.
    """

    trains_on: type = LogProbabilityStatistics

    def from_statistics(self, statistics: LogProbabilityStatistics) -> tf.Tensor:
        return -statistics.labels.mean(statistics.target_log_probabilities)


@keras.saving.register_keras_serializable(package="tfx_largeout")
class TFCandidateSamplingLoss(HeadLoss):
    """The loss of `TFSampledSoftmaxHead` or `TFNCEHead`, as `tf.nn` computes it.

    In evaluation it is the exact softmax cross-entropy for both, so that heads can be compared:
    the sampled losses are on scales of their own.

    In training `class_weights` multiply the loss of an example by the mean weight of its labels,
    whichever of them the head looks at.

    Args and errors: as `HeadLoss`.
    """

    trains_on: type = PerExampleLoss

    def from_statistics(self, statistics: PerExampleLoss) -> tf.Tensor:
        return statistics.values
