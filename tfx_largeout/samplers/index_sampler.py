# SPDX-License-Identifier: Apache-2.0
"""IndexSampler: the base of samplers that find candidates in an index over W."""

from __future__ import annotations

from typing import ClassVar

import tensorflow as tf

from tfx_largeout.arguments import at_most_classes, flag_argument, integer_argument
from tfx_largeout.devices import HOST
from tfx_largeout.indexes import HashIndex
from tfx_largeout.indexes.base import Index
from tfx_largeout.labels import Labels
from tfx_largeout.samplers.base import Candidates, OutputWeights, Sampler, with_certain


class IndexSampler(Sampler):
    """Candidates near queries, found in hash tables over the rows of W, and random ones.

    Found classes have an expected count of 1. Classes drawn by `background`, another sampler,
    represent all classes that are not found, with their expected counts. So with a background a
    corrected loss, such as `ComplementarySum`, has an unbiased estimate of Z whose largest terms
    are exact; the index changes only its precision. Without it, classes that are not found are
    missing, as in the papers.

    The index belongs to the head, `SampledHead(..., index=...)`, which keeps it up to date and
    saves it. With the same weights and the same index, the same seed gives the same candidates.

    To add one, implement `queries`; with `spreads_classes` they must be the same on all workers.

    Args:
        num_found: The largest number of classes taken from buckets, at most C: per example with
            `per_example`, else for the batch.
        background: Draws further candidates, such as `Unigram(counts, 500)`. Default None.
        per_example: Whether each example gets separate candidates: the first classes in its
            buckets. Default False: all share the classes that occur most often in the buckets of
            all examples, so that one dense product serves the batch.

    Raises:
        TypeError: `background` is not a sampler, or depends on W.
        ValueError: `num_found` is out of range, when the head is built also: above C.
    """

    looks_at_weights: ClassVar[bool] = True
    needs_index: ClassVar[bool] = True

    def __init__(
        self, num_found: int, background: Sampler | None = None, *, per_example: bool = False
    ) -> None:
        self.num_found = integer_argument("num_found", num_found, at_least=1)
        if background is not None and not isinstance(background, Sampler):
            raise TypeError(f"background must be a Sampler; got {background!r}")
        if background is not None and background.looks_at_weights:
            raise TypeError(
                "background must draw without regard to the weights, as they stand for all classes "
                f"that are not found; got {background!r}"
            )
        self.background = background
        self.per_example = flag_argument("per_example", per_example)

    def queries(self, hidden: tf.Tensor, labels: Labels, weights: OutputWeights) -> tf.Tensor:
        """Returns the vectors to query with, `[N, D]` or `[N, Q, D]`; zeros find nothing."""
        raise NotImplementedError

    def tabulate(self, num_classes: int) -> None:
        at_most_classes("num_found", self.num_found, num_classes)
        if self.background is not None:
            self.background.build(num_classes)

    def num_candidates(self, examples: int) -> tuple[int, bool]:
        drawn, own = (0, False)
        if self.background is not None:
            drawn, own = self.background.num_candidates(examples)
        return self.num_found + drawn, self.per_example or own

    def default_index(self) -> HashIndex:
        return HashIndex()

    def check_index(self, index: Index | None) -> None:
        if not isinstance(index, HashIndex):
            raise TypeError(f"index must be a HashIndex for {type(self).__name__}; got {index!r}")

    def draw(
        self, hidden: tf.Tensor, labels: Labels, seed: tf.Tensor, weights: OutputWeights
    ) -> Candidates:
        found = self.find(hidden, labels, seed, weights)
        if self.background is not None:
            with tf.device(HOST):
                own_seed = tf.random.fold_in(seed, 1)
            drawn = self.background.sample(hidden, labels, own_seed)
            candidates = with_certain(drawn, labels, found)
            if not self.per_example:
                return candidates
            # Only the worker with the row of a label knows whether it is found.
            of_labels = candidates.true_log_expected
            of_labels = weights.rows.of_owners(labels.ids, of_labels, "labels_found")
            return candidates._replace(true_log_expected=of_labels)
        return Candidates.certain(found, labels)

    def find(
        self, hidden: tf.Tensor, labels: Labels, seed: tf.Tensor, weights: OutputWeights
    ) -> tf.Tensor:
        """Returns the classes that the index finds, `[S]` or `[N, S]`; then -1.

        Per example, with several workers, only classes whose rows are on this worker.
        """
        queries = self.queries(tf.cast(hidden, tf.float32), labels, weights)
        return weights.index.candidates(queries, self.num_found, seed, self.per_example)
