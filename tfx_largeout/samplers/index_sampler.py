# SPDX-License-Identifier: Apache-2.0
"""IndexSampler: what all samplers share that find candidates in an index over W."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from tfx_largeout.indexes import HashIndex
from tfx_largeout.integer_argument import integer_argument
from tfx_largeout.labels import Labels
from tfx_largeout.ops.bucket_candidates import BucketCandidates
from tfx_largeout.ops.factored_state import bare_variable
from tfx_largeout.ops.variable_rows import gather
from tfx_largeout.samplers.base import Candidates, Sampler, where_labels
from tfx_largeout.sorted_search import is_in


class IndexSampler(Sampler):
    """Candidates near to queries, found in hash tables over the rows of W, and random ones.

    Of the S candidates, S - R are taken from buckets, if there are as many there; the others, at
    least R, are drawn from all other classes, each alike. **Expected counts**: 1 of a class from a
    bucket, and m / (C - n) of a random one, m and n being the numbers of both kinds. So with R > 0
    and any tables a corrected loss, such as `ComplementarySum`, has an unbiased estimate of Z whose
    largest terms are exact: an index can make it more or less precise, not wrong. With R = 0, the
    classes that were not found are missing, as in the paper.

    The head that has the sampler keeps the index up to date and saves it. With the same index, the
    same seed gives the same candidates.

    To add one, write `queries`.

    Args:
        num_sampled: S, at most C: for each example with `own`, else for the batch.
        num_random: R, at most S. Default: half of S.
        index: Its index, for no other sampler. Default: `HashIndex()`.
        own: Whether each example gets candidates of its own: the first ones that come up in its
            buckets. Default False: all get the same, those that come up most often in the buckets
            of all; one dense product then serves the batch.

    Raises:
        TypeError: `index` is none.
        ValueError: A number is out of range, when the head is built also: S above C.
    """

    def __init__(
        self,
        num_sampled: int,
        num_random: int | None = None,
        index: HashIndex | None = None,
        own: bool = False,
    ) -> None:
        self.num_sampled = integer_argument("num_sampled", num_sampled, at_least=1)
        if num_random is None:
            num_random = self.num_sampled // 2
        self.num_random = integer_argument("num_random", num_random, at_least=0)
        if self.num_random > self.num_sampled:
            raise ValueError(
                f"num_random must be at most num_sampled={self.num_sampled}; got {num_random}"
            )
        self.index = HashIndex() if index is None else index
        if not isinstance(self.index, HashIndex):
            raise TypeError(f"index must be a HashIndex; got {index!r}")
        self.own = bool(own)

    def queries(self, hidden: tf.Tensor, labels: Labels) -> tf.Tensor:
        """Returns the vectors to query with, `[N, Q, D]` float32; zeros find nothing."""
        raise NotImplementedError

    def tabulate(self, num_classes: int) -> None:
        if self.num_sampled > num_classes:
            raise ValueError(
                f"num_sampled must be at most num_classes={num_classes}; got {self.num_sampled}"
            )

    def follow(self, kernel: Any, bias: Any) -> None:
        if self.index.built:
            raise ValueError(
                f"index must serve no other sampler or head; got {self.index!r}, which is built"
            )
        self.kernel, self.bias = bare_variable(kernel), bias
        self.index.rebuild(self.kernel)

    def after_update(self, labels: Labels, candidates: tf.Tensor) -> None:
        touched = tf.concat([tf.reshape(labels.ids, [-1]), tf.reshape(candidates, [-1])], axis=0)
        self.index.update(self.kernel, touched)

    def draw(self, hidden: tf.Tensor, labels: Labels, seed: tf.Tensor) -> Candidates:
        ids, found = self.find(hidden, labels, seed)
        drawn = tf.math.count_nonzero(ids >= 0, axis=-1) - found
        rest = tf.cast(self.num_classes - found, tf.float32)
        log_random = tf.math.log(tf.maximum(tf.cast(drawn, tf.float32), 1) / rest)
        is_random = tf.range(self.num_sampled, dtype=tf.int64) >= found[..., tf.newaxis]
        log_expected = tf.where(is_random & (ids >= 0), log_random[..., tf.newaxis], 0.0)
        of_labels = tf.where(self._among(labels.ids, ids, found), 0.0, log_random[..., tf.newaxis])
        return Candidates(ids, log_expected, where_labels(labels, of_labels))

    def find(self, hidden: tf.Tensor, labels: Labels, seed: tf.Tensor) -> BucketCandidates:
        """Returns the candidates, those from buckets first."""
        queries = self.queries(tf.cast(hidden, tf.float32), labels)
        num_found = self.num_sampled - self.num_random
        return self.index.candidates(queries, num_found, self.num_random, seed, self.own)

    def rows(self, ids: tf.Tensor) -> tf.Tensor:
        """Returns rows of W as float32; zeros where an id is -1."""
        rows = tf.cast(gather(self.kernel, tf.maximum(ids, 0)), tf.float32)
        return tf.where(ids[..., tf.newaxis] < 0, 0.0, rows)

    def _among(self, labels: tf.Tensor, ids: tf.Tensor, found: tf.Tensor) -> tf.Tensor:
        """Returns for each label `[N, K]` whether it is one of the first `found` ids."""
        if not self.own:
            return is_in(tf.concat([ids[:found], [tf.int64.max]], axis=0), labels)
        from_bucket = tf.range(self.num_sampled, dtype=tf.int64) < found[:, tf.newaxis]
        equal = labels[:, :, tf.newaxis] == ids[:, tf.newaxis]
        return tf.reduce_any(equal & from_bucket[:, tf.newaxis], axis=2)

    def get_config(self) -> dict[str, Any]:
        return {
            "num_sampled": self.num_sampled,
            "num_random": self.num_random,
            "index": keras.saving.serialize_keras_object(self.index),
            "own": self.own,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> IndexSampler:
        return cls(**{**config, "index": keras.saving.deserialize_keras_object(config["index"])})
