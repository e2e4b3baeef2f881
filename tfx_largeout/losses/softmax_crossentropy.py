# SPDX-License-Identifier: Apache-2.0
"""SoftmaxCrossentropy: the exact softmax loss."""

from __future__ import annotations

from typing import Any, ClassVar

import keras
import tensorflow as tf

from tfx_largeout.arguments import number_argument
from tfx_largeout.losses.base import HeadLoss
from tfx_largeout.statistics import SoftmaxStatistics


@keras.saving.register_keras_serializable(package="tfx_largeout")
class SoftmaxCrossentropy(HeadLoss):
    """The exact softmax cross-entropy, for heads that give `SoftmaxStatistics`.

    loss = log Z - 1/|Y| sum_{c in Y} o_c + gamma (log Z)^2,  log Z = log sum_c exp(o_c)

    The target distribution is spread evenly over the labels Y of the example. The penalty keeps
    log Z near 0, which keeps the logits from drifting in low precision. Language models call it
    the z-loss; it has nothing to do with `ZLoss`. In evaluation the loss is the same function; the
    metric `ExactLoss` leaves the penalty out.

    ```python
    model.compile("adam", loss=SoftmaxCrossentropy(log_partition_penalty=1e-4))
    ```

    Args:
        log_partition_penalty: gamma, at least 0. Default 0.
        **kwargs: `reduction`, `name`, `dtype`, as `HeadLoss`. Each example needs a label.

    Raises:
        ValueError: `log_partition_penalty` is no such number.

    References:
        Chowdhery et al. 2022, PaLM: Scaling Language Modeling with Pathways, section 5 (gamma =
        1e-4).
    """

    trains_on: ClassVar[type] = SoftmaxStatistics

    def __init__(self, log_partition_penalty: float = 0.0, **kwargs: Any) -> None:
        super().__init__(**{"name": "softmax_crossentropy", **kwargs})
        self.log_partition_penalty = number_argument(
            "log_partition_penalty", log_partition_penalty, at_least=0
        )

    def from_statistics(self, statistics: SoftmaxStatistics) -> tf.Tensor:
        log_z = statistics.log_partition
        cross_entropy = log_z - statistics.labels.mean(statistics.target_logits)
        if not self.log_partition_penalty:
            return cross_entropy
        return cross_entropy + self.log_partition_penalty * log_z**2

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "log_partition_penalty": self.log_partition_penalty}
