# SPDX-License-Identifier: Apache-2.0
"""InBatch: the labels of a batch are the candidates of all its examples."""

from __future__ import annotations

from typing import ClassVar

import keras
import tensorflow as tf

from tfx_largeout.arguments import integer_argument, number_argument
from tfx_largeout.indexes.base import Index
from tfx_largeout.indexes.label_intervals import LabelIntervals
from tfx_largeout.labels import Labels
from tfx_largeout.samplers.base import Candidates, OutputWeights, Sampler, where_labels


@keras.saving.register_keras_serializable(package="tfx_largeout")
class InBatch(Sampler):
    """In-batch candidates: the labels of the batch, and optionally of earlier batches.

        E_c = 1 - (1 - 1 / B_c)^(1 + queue)

    is the probability that one of these batches has class c. B_c is the mean number of steps from a
    batch with c to the next, which `LabelIntervals` estimates from the stream of batches: no counts
    are needed, and the estimate follows changes. Frequent classes are negatives more often;
    dividing by E (`SampledSoftmax`, `ComplementarySum`) corrects for that. Candidates that are
    labels of the example itself are hits, which losses leave out.

    Only labels are candidates: a rare or new class is seldom a negative, so its logit stays too
    high for long, and a class that is never a label is found too often. Start the bias at the log
    frequencies (`initializers.LogFrequency`) against this, or use another sampler.

    The `LabelIntervals` are the index of the head, which creates them, counts each training step,
    and saves them. The logits of earlier batches' labels use the present rows of W.

    Cost: O(n log n) for n labels in the batch; with a queue, O(C) comparisons.

    Args:
        queue: The number of earlier batches whose labels are candidates, too. Default 0.
        decay: The `decay` of the `LabelIntervals` that a head creates. Default 0.01.

    Raises:
        TypeError: When the head is created: its index is not a `LabelIntervals`.
        ValueError: An argument is out of range.
        RuntimeError: When the head is built, over several workers.

    References:
        Yi and others 2019, Sampling-bias-corrected neural modeling for large corpus item
        recommendations, section 3 and algorithm 2.
    """

    needs_index: ClassVar[bool] = True
    per_example: ClassVar[bool] = False

    def __init__(self, queue: int = 0, decay: float = 0.01) -> None:
        self.queue = integer_argument("queue", queue, at_least=0)
        self.decay = number_argument("decay", decay, above=0, at_most=1)

    def default_index(self) -> LabelIntervals:
        return LabelIntervals(self.decay)

    def check_index(self, index: Index | None) -> None:
        if not isinstance(index, LabelIntervals):
            raise TypeError(f"index must be LabelIntervals for InBatch; got {index!r}")

    def num_candidates(self, examples: int) -> tuple[int, bool]:
        return (1 + self.queue) * examples, False

    def draw(
        self, hidden: tf.Tensor, labels: Labels, seed: tf.Tensor, weights: OutputWeights
    ) -> Candidates:
        stream: LabelIntervals = weights.index
        now = stream.arrivals(labels)
        log_expected = self._log_expected(now.intervals)
        ids, of_ids = now.ids, tf.where(now.ids < 0, 0.0, log_expected)
        if self.queue:
            earlier, intervals = stream.earlier(self.queue, without=ids)
            ids = tf.concat([ids, earlier], axis=0)
            of_ids = tf.concat([of_ids, self._log_expected(intervals)], axis=0)
        of_labels = tf.gather(log_expected, now.places)
        return Candidates(ids, of_ids, where_labels(labels, of_labels))

    def _log_expected(self, intervals: tf.Tensor) -> tf.Tensor:
        """Returns log E; B may be 1, or below for padding."""
        missed = tf.math.log1p(-1 / tf.maximum(intervals, 1 + 1e-6))  # log of 1 - 1/B
        return tf.math.log(-tf.math.expm1((1 + self.queue) * missed))
