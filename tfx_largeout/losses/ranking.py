# SPDX-License-Identifier: Apache-2.0
"""Ranking: the label should beat each negative by a margin."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import keras
import tensorflow as tf

from tfx_largeout.arguments import choice_argument, number_argument
from tfx_largeout.losses.candidate_loss import CandidateLoss, mean_over_negatives
from tfx_largeout.statistics import CandidateStatistics

_LIKELIHOOD_MARGIN = "log(C-1)"
_KINDS = ("logistic", "hinge")


@keras.saving.register_keras_serializable(package="tfx_largeout")
class Ranking(CandidateLoss):
    """The label's logit should exceed that of each negative by a margin.

    loss = mean_{y in Y} mean_{d in N(x)} l(o_y - o_d - margin)

    with l(t) = softplus(-t) = -log sigmoid(t), or the hinge max(0, -t). With a margin of log(C-1)
    the logistic one is `ComplementarySum` with a single uniform negative, averaged over the
    negatives. An example without negatives has a loss of 0. Expected counts are not looked at.

    Cost: O(N K S) time and memory.

    Args:
        margin: `"log(C-1)"` (default) or a finite number.
        kind: `"logistic"` (default) or `"hinge"`.
        **kwargs: As `HeadLoss`: `reduction`, `ignore_class`, `class_weights`, ...

    Raises:
        ValueError: `margin` or `kind` is none of these.

    Deviations:
        Several labels: the mean over them.

    References:
        Barber and Botev 2016, eq. 32 to 42. Collobert and Weston 2008 (hinge, margin 1).
    """

    sums_over_workers: ClassVar[bool] = True

    def __init__(
        self, margin: float | str = _LIKELIHOOD_MARGIN, kind: str = "logistic", **kwargs: Any
    ) -> None:
        super().__init__(**{"name": "ranking", **kwargs})
        self.margin = margin if margin == _LIKELIHOOD_MARGIN else _number(margin)
        self.kind = choice_argument("kind", kind, _KINDS)

    def from_statistics(self, statistics: CandidateStatistics) -> tf.Tensor:
        margin = self.margin
        if margin == _LIKELIHOOD_MARGIN:
            margin = math.log(statistics.num_classes - 1)
        true_logits = statistics.workers.share(statistics.true_logits, "true_logits")
        lead = true_logits[:, :, tf.newaxis] - statistics.candidate_logits[:, tf.newaxis]
        penalty = tf.math.softplus if self.kind == "logistic" else tf.nn.relu
        return statistics.labels.mean(mean_over_negatives(statistics, penalty(margin - lead)))

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "margin": self.margin, "kind": self.kind}


def _number(margin: Any) -> float:
    try:
        return number_argument("margin", margin)
    except ValueError as error:
        raise ValueError(f"{error}; {_LIKELIHOOD_MARGIN!r} is allowed, too") from error
