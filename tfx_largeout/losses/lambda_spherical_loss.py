# SPDX-License-Identifier: Apache-2.0
"""LambdaSphericalLoss: wraps a function of the spherical statistics that you write."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tfx_largeout.losses.spherical_loss import SphericalLoss
from tfx_largeout.statistics import SphericalStatistics


@keras.saving.register_keras_serializable(package="tfx_largeout")
class LambdaSphericalLoss(SphericalLoss):
    """A loss of the spherical family that you write.

    ```python
    @keras.saving.register_keras_serializable(package="my_package")
    def unit_logits(statistics):
        error = (statistics.target_logits - 1) ** 2
        return statistics.labels.mean(error) + 1e-3 * statistics.sum_of_squares

    loss = LambdaSphericalLoss(unit_logits)
    ```

    Args:
        fn: From `SphericalStatistics` to `[N]` losses, in TensorFlow, differentiable. To be saved
            with a model it must be registered with Keras.
        **kwargs: As `HeadLoss`: `reduction`, `ignore_class`, `class_weights`, ...

    Raises:
        TypeError: `fn` can't be called.
        ValueError: When saved: `fn` is not registered.
    """

    def __init__(self, fn: Callable[[SphericalStatistics], tf.Tensor], **kwargs: Any) -> None:
        super().__init__(**{"name": "lambda_spherical_loss", **kwargs})
        if not callable(fn):
            raise TypeError(f"fn must be a function of SphericalStatistics; got {fn!r}")
        self.fn = fn

    def from_statistics(self, statistics: SphericalStatistics) -> tf.Tensor:
        return self.fn(statistics)

    def get_config(self) -> dict[str, Any]:
        name = keras.saving.get_registered_name(self.fn)
        if keras.saving.get_registered_object(name) is None:
            raise ValueError(
                "fn must be registered with keras.saving.register_keras_serializable to be saved; "
                f"got {self.fn!r}"
            )
        return {**super().get_config(), "fn": keras.saving.serialize_keras_object(self.fn)}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> LambdaSphericalLoss:
        return cls(**{**config, "fn": keras.saving.deserialize_keras_object(config["fn"])})
