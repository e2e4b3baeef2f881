# SPDX-License-Identifier: Apache-2.0
"""SampledSoftmax: a softmax over labels and negatives, log Q corrected."""

from __future__ import annotations

from typing import Any, ClassVar

import keras
import tensorflow as tf

from tfx_largeout.losses.candidate_loss import (
    CandidateLoss,
    candidate_cross_entropy,
    corrected_candidates,
    corrected_labels,
)
from tfx_largeout.statistics import CandidateStatistics


@keras.saving.register_keras_serializable(package="tfx_largeout")
class SampledSoftmax(CandidateLoss):
    """The softmax over labels and negatives, each logit lowered by the log of its expected count.

    loss = log(sum_{y in Y} e^{s_y} + sum_{d in N(x)} e^{s_d}) - mean_{y in Y} s_y,
    s_c = o_c - log E_c

    `tf.nn.sampled_softmax_loss` with `remove_accidental_hits`. It differs from `ComplementarySum`
    in the label's weight, 1 / E_y instead of 1: as if the label, too, had been drawn. So the sum is
    no unbiased estimate of Z, and a rare label starts with a head start of -log E_y.

    Args:
        **kwargs: As `HeadLoss`: `reduction`, `ignore_class`, `class_weights`, ...

    Deviations:
        A hit is removed each time that it was drawn; TensorFlow removes it once.

    References:
        Jean, Cho, Memisevic, Bengio 2015, On Using Very Large Target Vocabulary for Neural Machine
        Translation. Barber and Botev 2016, footnote 4.
    """

    sums_over_workers: ClassVar[bool] = True

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**{"name": "sampled_softmax", **kwargs})

    def from_statistics(self, statistics: CandidateStatistics) -> tf.Tensor:
        return candidate_cross_entropy(
            statistics, corrected_labels(statistics), corrected_candidates(statistics)
        )
