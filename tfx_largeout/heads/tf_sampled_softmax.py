# SPDX-License-Identifier: Apache-2.0
"""TFSampledSoftmaxHead: `tf.nn.sampled_softmax_loss` as a head."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from tfx_largeout.heads.tf_candidate_sampling import TFCandidateSamplingHead


@keras.saving.register_keras_serializable(package="tfx_largeout")
class TFSampledSoftmaxHead(TFCandidateSamplingHead):
    """A dense layer that trains through `tf.nn.sampled_softmax_loss`: a peer to compare with.

    The loss is the softmax over the targets and S candidates, each logit lowered by the log of the
    class's expected count. Compile the model with `losses.TFCandidateSamplingLoss()`.

    Args and errors: as `TFCandidateSamplingHead`; `remove_accidental_hits` is True by default, as
    in `tf.nn`.

    References:
        Jean, Cho, Memisevic, Bengio 2015, On Using Very Large Target Vocabulary for Neural Machine
        Translation.
    """

    def sampled_loss(self, **arguments: Any) -> tf.Tensor:
        return tf.nn.sampled_softmax_loss(**arguments)
