# SPDX-License-Identifier: Apache-2.0
"""The perplexity of the exact softmax."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from tfx_largeout.metrics.exact_loss import ExactLoss


@keras.saving.register_keras_serializable(package="tfx_largeout")
class Perplexity(ExactLoss):
    """The exponential of the mean exact softmax cross-entropy: `exp(ExactLoss)`.

    Cost: O(N K) on top of the exact pass, which all metrics and the loss share.

    Args:
        during_training: Whether to update in training steps, too. Default False.
        name: Default `perplexity`.
        dtype: Dtype of the result. Default `keras.config.floatx()`.
        ignore_class: Of labels, as `ExactMetric`. Default None: that of the loss.
    """

    def __init__(
        self,
        during_training: bool = False,
        name: str | None = "perplexity",
        dtype: Any = None,
        ignore_class: int | None = None,
    ) -> None:
        super().__init__(during_training, name, dtype, ignore_class)

    def ratio(self) -> tf.Tensor:
        """Returns the perplexity so far, a float64 scalar; NaN if nothing was counted."""
        return keras.ops.exp(super().ratio())
