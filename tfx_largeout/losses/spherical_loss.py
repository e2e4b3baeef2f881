# SPDX-License-Identifier: Apache-2.0
"""The base of the losses that depend on the logits through o_y, sum o^2 and sum o alone."""

from __future__ import annotations

import tensorflow as tf

from tfx_largeout.losses.base import HeadLoss
from tfx_largeout.statistics import SphericalStatistics


class SphericalLoss(HeadLoss):
    """A loss of the spherical family: a function of `SphericalStatistics`.

    With `FactoredHead` a training step costs O(D^2) an example, whatever C is. `DenseHead` trains
    with it as well, through all C logits.

    In evaluation it is the same function of the same statistics, which are exact, without an
    update. A subclass writes `from_statistics`.

    References:
        Vincent, de Brébisson, Bouthillier 2015, arXiv 1412.7091, section on other losses.
    """

    trains_on: type = SphericalStatistics
    evaluates_on: type = SphericalStatistics

    def probabilities(self, logits: tf.Tensor, statistics: SphericalStatistics) -> tf.Tensor:
        """Returns the probabilities that the loss gives to classes with these logits.

        Args:
            logits: `[N, k]`, o of any k classes, such as the scores of `TopK`.
            statistics: The statistics of the same N examples.

        Returns:
            `[N, k]`.

        Raises:
            NotImplementedError: The loss defines no probabilities.
        """
        raise NotImplementedError(f"{type(self).__name__} defines no probabilities")
