# SPDX-License-Identifier: Apache-2.0
"""TFNCEHead: `tf.nn.nce_loss` as a head."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from tfx_largeout.heads.tf_candidate_sampling import TFCandidateSamplingHead


@keras.saving.register_keras_serializable(package="tfx_largeout")
class TFNCEHead(TFCandidateSamplingHead):
    """A dense layer that trains through `tf.nn.nce_loss`: a peer to compare with.

    The loss is logistic: targets against S candidates drawn from the sampler, each logit lowered
    by the log of the class's expected count. Compile the model with
    `losses.TFCandidateSamplingLoss()`.

    Args and errors: as `TFCandidateSamplingHead`, but `remove_accidental_hits` is False by default,
    as in `tf.nn`.

    References:
        Gutmann, Hyvarinen 2010, Noise-contrastive estimation: A new estimation principle for
        unnormalized statistical models.
    """

    def __init__(
        self,
        num_classes: int,
        num_sampled: int,
        remove_accidental_hits: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            num_classes, num_sampled, remove_accidental_hits=remove_accidental_hits, **kwargs
        )

    def sampled_loss(self, **arguments: Any) -> tf.Tensor:
        return tf.nn.nce_loss(**arguments)
