# SPDX-License-Identifier: Apache-2.0
"""MIDX: draws from the softmax over W as coded by an inverted multi-index."""

from __future__ import annotations

import math
from typing import ClassVar

import keras
import tensorflow as tf

from tfx_largeout.arguments import flag_argument, integer_argument
from tfx_largeout.indexes import InvertedMultiIndex
from tfx_largeout.indexes.base import Index
from tfx_largeout.labels import Labels
from tfx_largeout.samplers.base import Candidates, OutputWeights, Sampler, where_labels


@keras.saving.register_keras_serializable(package="tfx_largeout")
class MIDX(Sampler):
    """Draws from q(c|h), near the model's softmax and known exactly, without a pass over W.

        q(c|h) ~ v_c exp(h . code(w_c)),  E_c = S q(c|h)

    code(w_c) is the code of a row of W in an `InvertedMultiIndex`: the sum (or concatenation) of
    two of 2 Q code words; v_c is exp(b_c). So q follows W and h, as the softmax does; exp(o_c) /
    E_c of a draw differs from Z / S only as much as exp(h . (w_c - code(w_c))) differs from its
    mean. The draws are independent; a class may repeat, and a label may be drawn: a hit.

    With any codes, corrected losses (`ComplementarySum`, `SampledSoftmax`) have an unbiased
    estimate of Z. Finer codes make it more precise.

    With `per_example=False` all examples share S draws from the mean of their distributions, and E
    refers to this mean.

    The index belongs to the head, `SampledHead(..., index=...)`, which keeps it up to date and
    saves it. A head without an index creates `InvertedMultiIndex(num_words, quantization)`.

    Cost: O(B (Q D + Q^2 + S log(Q C))) time and O(B (Q + S) + Q^2) numbers; with TensorFlow's ops
    O(B (Q D + Q^2 + S (sqrt(Q) + log C))) and O(B (Q + 3 S) sqrt(Q)). Updates of the index come on
    top.

    Args:
        num_sampled: S, at least 1.
        num_words: Q of the index that a head creates. Default 64.
        quantization: `"pq"` or `"rq"`, likewise. Default `"rq"`.
        per_example: Whether each example gets separate candidates. Default True.

    Raises:
        TypeError: When the head is created: its index is not an `InvertedMultiIndex`.
        ValueError: An argument is out of range, when the head is built also: `num_words` above C.
        RuntimeError: When the head is built, over several workers.

    References:
        Chen, Zhang, Huang, Yang, Lian, Chen 2025, Adaptive sampled softmax with inverted
        multi-index: methods, theory and applications, section 4.

    Deviations: Classes of a pair are drawn with probabilities proportional to exp(b_c), not
        uniformly.
    """

    looks_at_weights: ClassVar[bool] = True
    needs_index: ClassVar[bool] = True

    def __init__(
        self,
        num_sampled: int,
        num_words: int = 64,
        quantization: str = "rq",
        per_example: bool = True,
    ) -> None:
        self.num_sampled = integer_argument("num_sampled", num_sampled, at_least=1)
        default = InvertedMultiIndex(num_words, quantization)  # checks the arguments
        self.num_words, self.quantization = default.num_words, default.quantization
        self.per_example = flag_argument("per_example", per_example)

    def default_index(self) -> InvertedMultiIndex:
        return InvertedMultiIndex(self.num_words, self.quantization)

    def check_index(self, index: Index | None) -> None:
        if not isinstance(index, InvertedMultiIndex):
            raise TypeError(f"index must be an InvertedMultiIndex for MIDX; got {index!r}")

    def draw(
        self, hidden: tf.Tensor, labels: Labels, seed: tf.Tensor, weights: OutputWeights
    ) -> Candidates:
        softmax = weights.index.softmax(hidden)
        distribution = softmax if self.per_example else softmax.mean()
        ids, log_probability = distribution.sample(self.num_sampled, seed)
        log_expected = tf.cast(log_probability + math.log(self.num_sampled), tf.float32)
        of_labels = distribution.log_probability(labels.ids) + math.log(self.num_sampled)
        log_expected = tf.where(ids < 0, 0.0, log_expected)
        return Candidates(ids, log_expected, where_labels(labels, of_labels))
