# SPDX-License-Identifier: Apache-2.0
"""IndexSampler: what all samplers share that find candidates in an index over W."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from tfx_largeout.arguments import integer_argument
from tfx_largeout.indexes import HashIndex
from tfx_largeout.labels import Labels
from tfx_largeout.ops.rows.variable_rows import bare_variable, gather
from tfx_largeout.samplers.base import Candidates, Sampler
from tfx_largeout.samplers.certain_candidates import with_certain


class IndexSampler(Sampler):
    """Candidates near to queries, found in hash tables over the rows of W; and others, drawn.

    Those that are found have an expected count of 1; `others`, drawn by another sampler, stand for
    all the classes that are not found, with their own expected counts. So with `others` and any
    tables a corrected loss, such as `ComplementarySum`, has an unbiased estimate of Z whose largest
    terms are exact: an index can make it more or less precise, not wrong. Without `others`, the
    classes that are not found are missing, as in the papers.

    The head that has the sampler keeps the index up to date and saves it. With the same index, the
    same seed gives the same candidates.

    To add one, write `queries`.

    Args:
        num_found: How many classes are taken from buckets at most, at most C: for each example with
            `own`, else for the batch.
        others: Draws further candidates, such as `Unigram(counts, 500)`. Default None.
        index: Its index, for no other sampler. Default: `HashIndex()`.
        own: Whether each example gets candidates of its own: the first ones that come up in its
            buckets. Default False: all get the same, those that come up most often in the buckets
            of all; one dense product then serves the batch.

    Raises:
        TypeError: `index` or `others` is none, or `others` depends on W.
        ValueError: `num_found` is out of range, when the head is built also: above C.
    """

    def __init__(
        self,
        num_found: int,
        others: Sampler | None = None,
        index: HashIndex | None = None,
        own: bool = False,
    ) -> None:
        self.num_found = integer_argument("num_found", num_found, at_least=1)
        self.index = HashIndex() if index is None else index
        if not isinstance(self.index, HashIndex):
            raise TypeError(f"index must be a HashIndex; got {index!r}")
        if others is not None and not isinstance(others, Sampler):
            raise TypeError(f"others must be a Sampler; got {others!r}")
        if others is not None and type(others).follow is not Sampler.follow:
            raise TypeError(
                "others must draw without regard to the weights, as they stand for all classes "
                f"that are not found; got {others!r}"
            )
        self.others = others
        self.own = bool(own)

    def queries(self, hidden: tf.Tensor, labels: Labels) -> tf.Tensor:
        """Returns the vectors to query with, `[N, Q, D]` float32; zeros find nothing."""
        raise NotImplementedError

    def tabulate(self, num_classes: int) -> None:
        if self.num_found > num_classes:
            raise ValueError(
                f"num_found must be at most num_classes={num_classes}; got {self.num_found}"
            )
        if self.others is not None:
            self.others.build(num_classes)

    def follow(self, kernel: Any, bias: Any) -> None:
        if self.index.built:
            raise ValueError(f"index must serve no other sampler or head; got {self.index!r}")
        self.index.build(tuple(kernel.shape))
        self.index.in_use = True
        self.kernel, self.bias = kernel, bias

    def after_update(self, labels: Labels, candidates: tf.Tensor) -> None:
        touched = tf.concat([tf.reshape(labels.ids, [-1]), tf.reshape(candidates, [-1])], axis=0)
        self.index.update(self.kernel, self.bias, touched)

    def draw(self, hidden: tf.Tensor, labels: Labels, seed: tf.Tensor) -> Candidates:
        found = self.find(hidden, labels, seed)
        if self.others is not None:
            drawn = self.others.sample(hidden, labels, tf.random.fold_in(seed, 1))
            return with_certain(drawn, labels, found)
        return Candidates.certain(found, labels)

    def find(self, hidden: tf.Tensor, labels: Labels, seed: tf.Tensor) -> tf.Tensor:
        """Returns the classes that the index finds, `[S]` or `[N, S]`; then -1."""
        self.index.build_once(self.kernel, self.bias)
        queries = self.queries(tf.cast(hidden, tf.float32), labels)
        return self.index.candidates(queries, self.num_found, seed, self.own)

    def rows(self, ids: tf.Tensor) -> tf.Tensor:
        """Returns rows of W as float32; zeros where an id is -1."""
        rows = tf.cast(gather(bare_variable(self.kernel), tf.maximum(ids, 0)), tf.float32)
        return tf.where(ids[..., tf.newaxis] < 0, 0.0, rows)

    def get_config(self) -> dict[str, Any]:
        return {
            "num_found": self.num_found,
            "others": keras.saving.serialize_keras_object(self.others),
            "index": keras.saving.serialize_keras_object(self.index),
            "own": self.own,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> IndexSampler:
        parts: dict[str, Any] = {
            name: keras.saving.deserialize_keras_object(config[name])
            for name in ("index", "others")
            if name in config
        }
        return cls(**{**config, **parts})
