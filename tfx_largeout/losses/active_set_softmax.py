# SPDX-License-Identifier: Apache-2.0
"""ActiveSetSoftmax: a plain softmax over labels and negatives."""

from __future__ import annotations

from typing import Any, ClassVar

import keras
import tensorflow as tf

from tfx_largeout.losses.candidate_loss import CandidateLoss, candidate_cross_entropy
from tfx_largeout.statistics import CandidateStatistics


@keras.saving.register_keras_serializable(package="tfx_largeout")
class ActiveSetSoftmax(CandidateLoss):
    """The softmax over labels and negatives as they are, without regard to expected counts.

    loss = log(sum_{y in Y} e^{o_y} + sum_{d in N(x)} e^{o_d}) - mean_{y in Y} o_y

    A lower bound of the exact loss for different candidates, close to it where they hold the
    classes of high probability, as those do that an index over the weights finds. With random
    candidates, prefer `ComplementarySum`: here the classes that were not drawn count for nothing.

    Args:
        **kwargs: As `HeadLoss`: `reduction`, `ignore_class`, `class_weights`, ...

    References:
        Vijayanarasimhan and others 2014, Deep networks with large output spaces. Daghaghi and
        others 2021, A tale of two efficient and informative negative sampling distributions.
    """

    sums_over_workers: ClassVar[bool] = True

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**{"name": "active_set_softmax", **kwargs})

    def from_statistics(self, statistics: CandidateStatistics) -> tf.Tensor:
        return candidate_cross_entropy(
            statistics, statistics.true_logits, statistics.candidate_logits
        )
