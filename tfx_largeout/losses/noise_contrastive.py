# SPDX-License-Identifier: Apache-2.0
"""NoiseContrastive: tell the label from noise."""

from __future__ import annotations

from typing import Any, ClassVar

import keras
import tensorflow as tf

from tfx_largeout.arguments import number_argument
from tfx_largeout.losses.candidate_loss import (
    CandidateLoss,
    corrected_candidates,
    corrected_labels,
    sum_over_candidates,
)
from tfx_largeout.statistics import CandidateStatistics

_LEARNED = "learned"


@keras.saving.register_keras_serializable(package="tfx_largeout")
class NoiseContrastive(CandidateLoss):
    """Logistic regression that tells labels from candidates, which are noise.

    loss = mean_{y in Y} softplus(-(o_y - z - log E_y)) + sum_{d} softplus(o_d - z - log E_d)

    z stands for log Z. e^{o_c - z} / (e^{o_c - z} + E_c) is the probability that class c is the
    label and not one of the candidates. The noise ranges over all classes, so d runs over all
    candidates, hits too. `tf.nn.nce_loss` for one label an example, z = 0.

    The more candidates, the nearer the optimum is to that of the likelihood, if z can be right: one
    number for all examples can be so only for a model that normalizes itself.

    Args:
        log_partition: z: a finite number, or `"learned"`: a weight of the head. Default 0.
        remove_accidental_hits: Whether hits are left out, as TensorFlow's option of this name says.
            Default False.
        **kwargs: As `HeadLoss`: `reduction`, `ignore_class`, `class_weights`, ...

    Raises:
        ValueError: `log_partition` is neither.

    Deviations:
        The paper's z differs from example to example; here it is one number. Several labels: the
        mean over them.

    References:
        Barber and Botev 2016, eq. 30 and 31. Gutmann and Hyvärinen 2010, Noise-contrastive
        estimation.
    """

    sums_over_workers: ClassVar[bool] = True

    def __init__(
        self, log_partition: float | str = 0.0, remove_accidental_hits: bool = False, **kwargs: Any
    ) -> None:
        super().__init__(**{"name": "noise_contrastive", **kwargs})
        self.log_partition = _checked(log_partition)
        self.remove_accidental_hits = bool(remove_accidental_hits)

    def from_statistics(self, statistics: CandidateStatistics) -> tf.Tensor:
        z = statistics.log_partition if self.log_partition == _LEARNED else self.log_partition
        missed = statistics.labels.mean(tf.math.softplus(z - corrected_labels(statistics)))
        if self.log_partition == _LEARNED:
            z = statistics.workers.share(z, "log_partition")
        believed = tf.math.softplus(corrected_candidates(statistics) - z)
        noise = (
            statistics.negatives if self.remove_accidental_hits else statistics.candidate_ids >= 0
        )
        return missed + sum_over_candidates(statistics, noise, believed)

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "log_partition": self.log_partition,
            "remove_accidental_hits": self.remove_accidental_hits,
        }


def _checked(log_partition: Any) -> float | str:
    if log_partition == _LEARNED:
        return _LEARNED
    try:
        return number_argument("log_partition", log_partition)
    except ValueError as error:
        raise ValueError(f"{error}; {_LEARNED!r} is allowed, too") from error
