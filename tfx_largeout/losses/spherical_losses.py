# SPDX-License-Identifier: Apache-2.0
"""The losses that depend on the logits only through o_y, sum o^2 and sum o, and their base."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import keras
import numpy as np
import tensorflow as tf

from tfx_largeout.arguments import number_argument
from tfx_largeout.losses.base import PROBABILITIES, TARGETS, HeadLoss
from tfx_largeout.saving import check_registered, with_objects
from tfx_largeout.statistics import SphericalStatistics

_SMALLEST_VARIANCE = 1e-30
_ROUNDING = 32  # the rounding error of q / C - mu^2, in units of the last place of q / C


class SphericalLoss(HeadLoss):
    """A loss of the spherical family: a function of `SphericalStatistics`.

    With `FactoredHead` a training step costs O(D^2) per example, independent of C. `DenseHead` can
    train with it, too, with all C logits.

    In evaluation it is the same function of the same statistics, which are exact, without an
    update. A subclass implements `from_statistics`.

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


@keras.saving.register_keras_serializable(package="tfx_largeout")
class SphericalSoftmax(SphericalLoss):
    """The negative log-likelihood under the spherical softmax.

    p_c = (o_c^2 + epsilon) / (q + C epsilon),  loss = -1/|Y| sum_{c in Y} log p_c

    A class is likely if its logit is far from 0 on either side; at o = 0 the gradient of the target
    is 0. To have logits and probabilities in the same order, start from positive logits:
    `FactoredHead(..., use_bias=True, bias_initializer="ones")`.

    Args:
        epsilon: Above 0. Default 1e-3. The smaller, the steeper the loss is around o = 0.
        **kwargs: As `HeadLoss`: `reduction`, `ignore_class`, `class_weights`, ...

    Raises:
        ValueError: `epsilon` is out of range.

    References:
        Vincent, de Brébisson, Bouthillier 2015, arXiv 1412.7091; de Brébisson and Vincent 2016,
        arXiv 1511.05042.
    """

    takes_values: ClassVar[str | None] = PROBABILITIES

    def __init__(self, epsilon: float = 1e-3, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.epsilon = number_argument("epsilon", epsilon, above=0)

    def from_statistics(self, statistics: SphericalStatistics) -> tf.Tensor:
        scores = tf.math.log(statistics.target_logits**2 + self.epsilon)
        return tf.math.log(self._total(statistics)) - statistics.labels.mean(scores)

    def probabilities(self, logits: tf.Tensor, statistics: SphericalStatistics) -> tf.Tensor:
        """Returns (o^2 + epsilon) / (q + C epsilon)."""
        return (logits**2 + self.epsilon) / self._total(statistics)[:, tf.newaxis]

    def _total(self, statistics: SphericalStatistics) -> tf.Tensor:
        return statistics.sum_of_squares + statistics.num_classes * self.epsilon


@keras.saving.register_keras_serializable(package="tfx_largeout")
class TaylorSoftmax(SphericalLoss):
    """The negative log-likelihood under the Taylor softmax.

    p_c = (1 + o_c + o_c^2 / 2) / (C + s + q / 2),  loss = -1/|Y| sum_{c in Y} log p_c

    The numerator is at least 1/2, at o_c = -1, and grows on both sides of it.

    Args and errors: as `HeadLoss`.

    References:
        de Brébisson and Vincent 2016, arXiv 1511.05042.
    """

    takes_values: ClassVar[str | None] = PROBABILITIES

    def from_statistics(self, statistics: SphericalStatistics) -> tf.Tensor:
        scores = tf.math.log(_score(statistics.target_logits))
        return tf.math.log(_total(statistics)) - statistics.labels.mean(scores)

    def probabilities(self, logits: tf.Tensor, statistics: SphericalStatistics) -> tf.Tensor:
        """Returns (1 + o + o^2 / 2) / (C + s + q / 2)."""
        return _score(logits) / _total(statistics)[:, tf.newaxis]


def _score(logits: tf.Tensor) -> tf.Tensor:
    return 0.5 + 0.5 * (1 + logits) ** 2


def _total(statistics: SphericalStatistics) -> tf.Tensor:
    return statistics.num_classes + statistics.sum_of_logits + statistics.sum_of_squares / 2


@keras.saving.register_keras_serializable(package="tfx_largeout")
class ZLoss(SphericalLoss):
    """The Z-loss of a target's standard score; not the (log Z)^2 penalty of language models.

    It does not change if all logits are shifted or scaled, except for rounding. (The penalty of the
    same name is `SoftmaxCrossentropy(log_partition_penalty=...)`.)

    loss = 1/|Y| sum_{c in Y} 1/a softplus(a (b - z_c)),  z_c = (o_c - mu) / sigma,
    mu = s / C,  sigma^2 = q / C - mu^2

    It needs logits that are not all equal: start from random weights. It defines no probabilities.
    sigma^2 is a difference of sums: its relative error is the dtype's times (mu / sigma)^2. In
    float32 sigma is at least sqrt(q / C) / 512: the loss is correct while |mu| is well below 500
    sigma, and bounded beyond.

    Args:
        a: Above 0: how sharply the loss bends at z_c = b. Default 0.1.
        b: The standard score above which a target counts as good enough. Default 10.
        **kwargs: As `HeadLoss`: `reduction`, `ignore_class`, `class_weights`, ...

    Raises:
        ValueError: `a` or `b` is out of range.

    References:
        de Brébisson and Vincent 2016, arXiv 1604.08859.
    """

    takes_values: ClassVar[str | None] = PROBABILITIES

    def __init__(self, a: float = 0.1, b: float = 10.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.a = number_argument("a", a, above=0)
        self.b = number_argument("b", b)

    def from_statistics(self, statistics: SphericalStatistics) -> tf.Tensor:
        mean = statistics.sum_of_logits / statistics.num_classes
        square = statistics.sum_of_squares / statistics.num_classes
        least = _ROUNDING * np.finfo(square.dtype.as_numpy_dtype).eps * square
        variance = tf.maximum(square - mean**2, tf.maximum(least, _SMALLEST_VARIANCE))
        scale = tf.math.rsqrt(variance)
        z = (statistics.target_logits - mean[:, tf.newaxis]) * scale[:, tf.newaxis]
        return statistics.labels.mean(tf.math.softplus(self.a * (self.b - z)) / self.a)


@keras.saving.register_keras_serializable(package="tfx_largeout")
class SquaredError(SphericalLoss):
    """The squared error over all C outputs; the target is 0 except at the labels.

    loss = sum_c (o_c - t_c)^2 = q - 2 sum_k t_k a_k + sum_k t_k^2

    Labels given as ids have the target `target_value`. Other targets are given as a
    `tf.SparseTensor` of floats `[B, C]` or as a pair of ids and values; a row without entries then
    means that all targets are 0. An example with ids as labels, but without any, is ignored.

    With `class_weights` the loss of an example is multiplied by the mean weight of its labels.

    Args:
        target_value: t at the labels, finite. Default 1.
        **kwargs: As `HeadLoss`: `reduction`, `ignore_class`, `class_weights`, ...

    Raises:
        ValueError: `target_value` is not finite.

    References:
        Vincent, de Brébisson, Bouthillier 2015, arXiv 1412.7091.
    """

    takes_values: ClassVar[str | None] = TARGETS

    def __init__(self, target_value: float = 1.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.target_value = number_argument("target_value", target_value)

    def from_statistics(self, statistics: SphericalStatistics) -> tf.Tensor:
        labels, targets = statistics.labels, statistics.target_logits
        if labels.values is None:
            values = tf.fill(tf.shape(targets), tf.constant(self.target_value, targets.dtype))
        else:
            values = tf.cast(labels.values, targets.dtype)
        terms = tf.where(labels.mask, values * (values - 2 * targets), 0)
        return statistics.sum_of_squares + tf.reduce_sum(terms, axis=-1)


@keras.saving.register_keras_serializable(package="tfx_largeout")
class LambdaSphericalLoss(SphericalLoss):
    """A custom loss of the spherical family.

    ```python
    @keras.saving.register_keras_serializable(package="my_package")
    def unit_logits(statistics):
        error = (statistics.target_logits - 1) ** 2
        return statistics.labels.mean(error) + 1e-3 * statistics.sum_of_squares

    loss = LambdaSphericalLoss(unit_logits)
    ```

    Args:
        fn: A differentiable TensorFlow function from `SphericalStatistics` to losses `[N]`. To be
            saved with a model it must be registered with Keras.
        **kwargs: As `HeadLoss`: `reduction`, `ignore_class`, `class_weights`, ...

    Raises:
        TypeError: `fn` is not callable.
        ValueError: When saved: `fn` is not registered.
    """

    def __init__(self, fn: Callable[[SphericalStatistics], tf.Tensor], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if not callable(fn):
            raise TypeError(f"fn must be a function of SphericalStatistics; got {fn!r}")
        self.fn = fn

    def from_statistics(self, statistics: SphericalStatistics) -> tf.Tensor:
        return self.fn(statistics)

    def get_config(self) -> dict[str, Any]:
        check_registered("fn", self.fn)
        return super().get_config()

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> LambdaSphericalLoss:
        return cls(**with_objects(config))
