# SPDX-License-Identifier: Apache-2.0
"""TFCandidateSamplingLoss: the loss that a head of TensorFlow's built-ins comes with."""

from __future__ import annotations

import keras
import tensorflow as tf

from tfx_largeout.losses.base import HeadLoss
from tfx_largeout.statistics import PerExampleLoss


@keras.saving.register_keras_serializable(package="tfx_largeout")
class TFCandidateSamplingLoss(HeadLoss):
    """The loss of `TFSampledSoftmaxHead` or `TFNCEHead`, as `tf.nn` computes it.

    In evaluation it is the exact softmax cross-entropy for both, so that heads can be compared:
    the sampled losses are on scales of their own.

    Args and errors: as `HeadLoss`.
    """

    trains_on: type = PerExampleLoss

    def from_statistics(self, statistics: PerExampleLoss) -> tf.Tensor:
        return statistics.values
