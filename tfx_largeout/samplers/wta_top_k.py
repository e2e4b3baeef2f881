# SPDX-License-Identifier: Apache-2.0
"""WTATopK: the classes with the greatest logits among the classes that an index finds."""

from __future__ import annotations

from typing import ClassVar

import keras
import tensorflow as tf

from tfx_largeout.arguments import integer_argument
from tfx_largeout.indexes import HashIndex, WTAHash
from tfx_largeout.labels import Labels
from tfx_largeout.samplers.base import Candidates, OutputWeights
from tfx_largeout.samplers.index_sampler import IndexSampler


@keras.saving.register_keras_serializable(package="tfx_largeout")
class WTATopK(IndexSampler):
    """The k best classes per example, found by hashing h and ranked by their exact logits.

    The index gives up to `num_found` classes; the k with the greatest logits are the candidates.
    Labels are always included, as with every sampler. A head without `index` creates
    `HashIndex(WTAHash(window=16), hashes_per_table=3, num_tables=200)`.

    Args:
        k: The number of candidates per example, at most `num_found`.
        num_found: The number of classes that are ranked, at most C. Default 10 k.

    Raises:
        ValueError: `k` or `num_found` is out of range; also when the head is built:
            `num_found` is above C.

    References:
        Vijayanarasimhan, Shlens, Monga, Yagnik 2014, section 3.4.
    """

    spreads_classes: ClassVar[bool] = True

    def __init__(self, k: int, num_found: int | None = None) -> None:
        self.k = integer_argument("k", k, at_least=1)
        num_found = 10 * self.k if num_found is None else num_found
        super().__init__(num_found, per_example=True)
        if self.k > self.num_found:
            raise ValueError(f"k must be at most num_found={self.num_found}; got {k}")

    def default_index(self) -> HashIndex:
        return HashIndex(WTAHash(window=16), hashes_per_table=3, num_tables=200)

    def queries(self, hidden: tf.Tensor, labels: Labels, weights: OutputWeights) -> tf.Tensor:
        return hidden

    def num_candidates(self, examples: int) -> tuple[int, bool]:
        return self.k, True

    def draw(
        self, hidden: tf.Tensor, labels: Labels, seed: tf.Tensor, weights: OutputWeights
    ) -> Candidates:
        found = self.find(hidden, labels, seed, weights)
        best = weights.rows.best_of(hidden, weights.kernel, weights.bias, found, self.k)
        return Candidates.certain(best.ids, labels)
