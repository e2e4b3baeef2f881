# SPDX-License-Identifier: Apache-2.0
"""Margins for the labels in a softmax of s cos(theta): CosFace, ArcFace, and both."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import tensorflow as tf

from tfx_largeout.arguments import number_argument
from tfx_largeout.heads.base import HeadOutput
from tfx_largeout.labels import Labels
from tfx_largeout.losses.base import HeadLoss
from tfx_largeout.statistics import CandidateStatistics

_MARGINS = ("cosine_margin", "angular_margin")


class MarginLoss(HeadLoss):
    """A softmax whose labels may have to win by a margin.

    In training, behind a head with a `cosine_scale` s, the logit o_y = s cos(theta_y) of each label
    becomes

        o'_y = s (psi(theta_y) - m),
        psi(theta) = cos(theta + a) if theta <= pi - a, else cos(theta) - a sin(a),

    with the additive cosine margin m (CosFace) and the angular one a (ArcFace), in the sum over
    classes and outside of it. All other logits are unchanged. Beyond pi - a, where cos(theta + a)
    would rise again, psi is ArcFace's continuation: it goes on falling with theta, after a jump
    down of cos(a) + a sin(a) - 1. sin(theta) is at least the square root of the rounding error, so
    that the derivative is finite at theta = 0. In evaluation there is no margin: the loss uses s
    cos(theta).

    Args:
        cosine_margin: m, at least 0 and below 2. CosFace has 0.35. Default 0.
        angular_margin: a in radians, at least 0 and at most pi / 2. ArcFace has 0.5. Default 0.
        **kwargs: As `HeadLoss`.

    Raises:
        ValueError: A margin is out of range.
        TypeError: In a call, with a margin: the head has no `cosine_scale`, or labels are soft.

    References:
        Wang and others 2018, CosFace: Large Margin Cosine Loss for Deep Face Recognition, eq. 4.
        Deng and others 2019, ArcFace: Additive Angular Margin Loss for Deep Face Recognition, eq. 3
        and 4.
    """

    def __init__(
        self, cosine_margin: float = 0.0, angular_margin: float = 0.0, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.cosine_margin = number_argument("cosine_margin", cosine_margin, at_least=0, below=2)
        self.angular_margin = number_argument(
            "angular_margin", angular_margin, at_least=0, at_most=math.pi / 2
        )

    @property
    def has_margin(self) -> bool:
        """Whether one of the margins is not 0."""
        return bool(self.cosine_margin or self.angular_margin)

    def without_margin(self) -> HeadLoss:
        """Returns the loss with margins of 0, as used in evaluation."""
        if not self.has_margin:
            return self
        config = self.get_config()
        return type(self).from_config({k: v for k, v in config.items() if k not in _MARGINS})

    def get_config(self) -> dict[str, Any]:
        config = super().get_config()
        # Margins of 0 are left out, since a subclass need not take them.
        return {k: v for k, v in config.items() if k not in _MARGINS or v}

    def with_margin(self, logits: tf.Tensor, scale: tf.Tensor | None) -> tf.Tensor:
        """Returns o' from the logits o of labels, `[N, K]`; without a margin, o."""
        if not self.has_margin:
            return logits
        scale = tf.cast(scale, logits.dtype)
        psi = logits / scale
        if self.angular_margin:
            psi = _with_angle(psi, self.angular_margin)
        return scale * (psi - self.cosine_margin)

    def candidates_with_margin(self, statistics: CandidateStatistics) -> CandidateStatistics:
        """Returns the statistics with o' for the labels."""
        return statistics._replace(
            true_logits=self.with_margin(statistics.true_logits, statistics.scale)
        )

    def _with_sets(self, labels: Labels) -> Labels:
        if self.has_margin and labels.values is not None:
            return labels.as_set(type(self).__name__)
        return super()._with_sets(labels)

    def checked(self, labels: Labels, num_classes: int) -> Labels:
        if self.has_margin and labels.values is not None:
            raise TypeError(
                f"{type(self).__name__} with a margin must get integer class ids as labels; got "
                "sparse targets or soft labels, which name no true class"
            )
        return super().checked(labels, num_classes)

    def _kind(self, output: HeadOutput) -> type:
        if self.has_margin and output.head.cosine_scale is None:
            raise TypeError(
                f"cosine_margin and angular_margin of {type(self).__name__} need a head whose "
                "logits are s cos(theta): a DenseHead, ExactSoftmaxHead or SampledHead with a "
                f"cosine_scale; got {type(output.head).__name__} {output.head.name!r} without, "
                f"and margins of {self.cosine_margin:g} and {self.angular_margin:g}"
            )
        return super()._kind(output)


def _with_angle(cosines: tf.Tensor, margin: float) -> tf.Tensor:
    """Returns psi(theta) from cos(theta)."""
    smallest = np.finfo(cosines.dtype.as_numpy_dtype).eps
    squares = tf.maximum((1 - cosines) * (1 + cosines), smallest)
    rotated = cosines * math.cos(margin) - tf.sqrt(squares) * math.sin(margin)
    is_beyond = cosines < -math.cos(margin)  # theta > pi - a
    return tf.where(is_beyond, cosines - margin * math.sin(margin), rotated)
