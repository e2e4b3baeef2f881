# SPDX-License-Identifier: Apache-2.0
"""What a head tells a loss about the logits: a few numbers an example, never all of them.

A head names the family of statistics it gives in training (`Head.statistics_type`), a loss the
family it is a function of (`HeadLoss.statistics_type`); every loss of a family works with every
head of that family. N is the number of examples (batch dimensions flattened), K the labels of an
example.
"""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf

from tfx_largeout.labels import Labels


class SoftmaxStatistics(NamedTuple):
    """What the exact softmax needs.

    Attributes:
        labels: The labels, normal form.
        target_logits: `[N, K]` float32, o at the labels; anything at padding.
        log_partition: `[N]` float32, log Z = log sum_c exp(o_c).
    """

    labels: Labels
    target_logits: tf.Tensor
    log_partition: tf.Tensor


class SphericalStatistics(NamedTuple):
    """What a loss of the spherical family needs: see docs/factored_head.md.

    The floats are float32, or float64 from a float64 head.

    Attributes:
        labels: The labels, normal form.
        target_logits: `[N, K]`, o at the labels; 0 at padding.
        sum_of_squares: `[N]`, q = sum_c o_c^2.
        sum_of_logits: `[N]`, s = sum_c o_c.
        num_classes: C.
    """

    labels: Labels
    target_logits: tf.Tensor
    sum_of_squares: tf.Tensor
    sum_of_logits: tf.Tensor
    num_classes: int


class PerExampleLoss(NamedTuple):
    """The loss itself, from a head whose method is a loss (TensorFlow's built-ins).

    Attributes:
        labels: The labels, normal form.
        values: `[N]` float32.
    """

    labels: Labels
    values: tf.Tensor


class ExactStatistics(NamedTuple):
    """What every head gives in evaluation, from one streamed pass over all classes.

    Attributes:
        labels: The labels, normal form.
        target_logits: `[N, K]` float32, o at the labels; 0 at padding.
        log_partition: `[N]` float32, log Z = log sum_c exp(o_c).
        target_ranks: `[N, K]` int64, the number of classes that score higher than the label, ties
            by lower id: 0 is the best; -1 at padding.
    """

    labels: Labels
    target_logits: tf.Tensor
    log_partition: tf.Tensor
    target_ranks: tf.Tensor


def without_gradient(statistics: SphericalStatistics) -> SphericalStatistics:
    """Returns the same statistics; whoever asks for a gradient through them gets a LookupError."""

    def prevent(values: tf.Tensor) -> tf.Tensor:
        return tf.raw_ops.PreventGradient(
            input=values, message="an exact loss has no gradient: call the model with training=True"
        )

    return statistics._replace(
        target_logits=prevent(statistics.target_logits),
        sum_of_squares=prevent(statistics.sum_of_squares),
        sum_of_logits=prevent(statistics.sum_of_logits),
    )
