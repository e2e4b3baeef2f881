# SPDX-License-Identifier: Apache-2.0
"""ExactSoftmaxSampler: draws from the softmax of the model itself."""

from __future__ import annotations

import math
from typing import ClassVar

import keras
import tensorflow as tf

from tfx_largeout.arguments import integer_argument
from tfx_largeout.labels import Labels
from tfx_largeout.ops.candidates.candidate_logits import candidate_logits
from tfx_largeout.ops.exact.softmax_draws import softmax_draws
from tfx_largeout.samplers.base import Candidates, OutputWeights, Sampler, where_labels


@keras.saving.register_keras_serializable(package="tfx_largeout")
class ExactSoftmaxSampler(Sampler):
    """S draws per example from the model's softmax, which adaptive samplers approximate.

    E_c = S p_c,  p_c = exp(o_c) / Z,  Z = sum_d exp(o_d),  o = W h + b

    The draws are independent; a class may repeat, and a label may be drawn: a hit, as with other
    samplers. Each draw's exp(o_d) / E_d is Z / S, so that the estimate of Z from all draws, hits
    included, is Z itself: it has no variance. With `ImportanceSampling` the gradient is an unbiased
    estimate of the exact softmax's gradient.

    It computes all logits, so it saves no time: it is for comparison. Its gain over a sampler that
    does not use W is the largest that any sampler that uses W can have.

    Cost: O(B C D) time, twice the time of all logits, independent of S; memory for a few blocks of
    2^20 logits, the sums of blocks, at most B C / 64, and about 64 B S + 2^14 S.

    Args:
        num_sampled: S, at least 1.

    Raises:
        ValueError: `num_sampled` is out of range.
        RuntimeError: When the head is built, over several workers.

    References:
        Bengio and Senécal 2008, Adaptive importance sampling to accelerate training of a neural
        probabilistic language model: the model's own distribution as the best proposal. Blanc and
        Rendle 2018, Adaptive sampled softmax with kernel based sampling, Theorem 2.1: the softmax
        is the only distribution with which the sampled softmax is unbiased.
    """

    looks_at_weights: ClassVar[bool] = True
    per_example: ClassVar[bool] = True

    def __init__(self, num_sampled: int) -> None:
        self.num_sampled = integer_argument("num_sampled", num_sampled, at_least=1)

    def draw(
        self, hidden: tf.Tensor, labels: Labels, seed: tf.Tensor, weights: OutputWeights
    ) -> Candidates:
        hidden = tf.cast(hidden, "float64" if weights.kernel.dtype == "float64" else "float32")
        layer = weights.kernel, weights.bias
        ids, log_partition = softmax_draws(hidden, *layer, self.num_sampled, seed)
        # These are the head's logits, bit for bit: the logits of the draws cancel in Z.
        values = candidate_logits(*layer, hidden, labels.ids, ids)
        log_factor = math.log(self.num_sampled) - log_partition[:, tf.newaxis]
        return Candidates(
            ids,
            tf.where(ids < 0, 0.0, tf.cast(values.candidate_logits + log_factor, tf.float32)),
            where_labels(labels, values.true_logits + log_factor),
        )
