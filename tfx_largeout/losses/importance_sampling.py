# SPDX-License-Identifier: Apache-2.0
"""ImportanceSampling: the likelihood, with the whole sum over classes estimated."""

from __future__ import annotations

from typing import Any, ClassVar

import keras
import tensorflow as tf

from tfx_largeout.losses.candidate_loss import CandidateLoss, corrected_candidates, log_sum_exp
from tfx_largeout.statistics import CandidateStatistics


@keras.saving.register_keras_serializable(package="tfx_largeout")
class ImportanceSampling(CandidateLoss):
    """The negative log-likelihood with all of Z estimated by the candidates: for comparison.

    loss = log(sum_{candidates d} e^{o_d} / E_d) - mean_{y in Y} o_y

    The sum, hits included, is an unbiased estimate of Z, but the label is in it only if it was
    drawn. So the estimated probability of the label, e^{-loss}, may exceed 1, the loss may be
    negative, without a lower bound, and gamma of eq. 14 leaves [-1, 1]. The derivative of the
    loss itself with respect to o_y is -1 as long as the label is not drawn, however likely the
    label is already. Use `ComplementarySum`, at the same cost.

    An example for which no candidate was drawn (`Bernoulli` may draw none) has no estimate: its
    loss is 0, and it teaches nothing.

    Args:
        **kwargs: As `HeadLoss`: `reduction`, `ignore_class`, `class_weights`, ...

    References:
        Barber and Botev 2016, eq. 12 to 14. Bengio and Senécal 2003, Quick training of
        probabilistic neural nets by importance sampling.
    """

    sums_over_workers: ClassVar[bool] = True

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**{"name": "importance_sampling", **kwargs})

    def from_statistics(self, statistics: CandidateStatistics) -> tf.Tensor:
        drawn = tf.broadcast_to(statistics.candidate_ids >= 0, tf.shape(statistics.hits))
        log_sum = log_sum_exp(corrected_candidates(statistics), drawn, statistics.workers)
        loss = log_sum - statistics.labels.mean(statistics.true_logits)
        is_drawn = statistics.workers.any(tf.reduce_any(drawn, axis=1), "drawn")
        return tf.where(is_drawn, loss, 0)
