# SPDX-License-Identifier: Apache-2.0
"""ExactTopK: the classes with the greatest logits."""

from __future__ import annotations

from typing import ClassVar

import keras
import tensorflow as tf

from tfx_largeout.arguments import at_most_classes, integer_argument
from tfx_largeout.labels import Labels
from tfx_largeout.samplers.base import Candidates, OutputWeights, Sampler


@keras.saving.register_keras_serializable(package="tfx_largeout")
class ExactTopK(Sampler):
    """The k classes with the greatest logits per example, which indexes approximate.

    With `ActiveSetSoftmax` this is the top-k softmax: forward it computes all classes, backward k
    classes and the labels. For comparison with `LSHEmbedding` and `WTATopK`, which find some of
    these classes without computing all logits.

    Cost: O(B C D) time; memory independent of C.

    Args:
        k: The number of candidates per example, at most C.

    Raises:
        ValueError: `k` is out of range, when the head is built also: above C.

    References:
        Vijayanarasimhan, Shlens, Monga, Yagnik 2014, sections 3.1 and 3.4.
    """

    looks_at_weights: ClassVar[bool] = True
    spreads_classes: ClassVar[bool] = True

    def __init__(self, k: int) -> None:
        self.k = integer_argument("k", k, at_least=1)

    def tabulate(self, num_classes: int) -> None:
        at_most_classes("k", self.k, num_classes)

    def num_candidates(self, examples: int) -> tuple[int, bool]:
        return self.k, True

    def draw(
        self, hidden: tf.Tensor, labels: Labels, seed: tf.Tensor, weights: OutputWeights
    ) -> Candidates:
        best = weights.rows.best(hidden, weights.kernel, weights.bias, self.k)
        return Candidates.certain(best.ids, labels)
