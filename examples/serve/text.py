# SPDX-License-Identifier: Apache-2.0
"""TfIdf: texts to weighted words, as a layer of an exported model."""

from __future__ import annotations

from collections.abc import Sequence

import keras
import numpy as np
import tensorflow as tf


class TfIdf(keras.layers.Layer):
    """The row of `tlo.datasets.tf_idf` for a definition, from its text.

    A text is split into words as in the WordNet data: runs of letters and digits, in lower case.
    Unknown words are left out.

    Args:
        words: V distinct words, by feature id.
        idf: `[V]` float, their inverse document frequencies.
    """

    def __init__(self, words: Sequence[str], idf: np.ndarray) -> None:
        super().__init__(trainable=False)
        pairs = tf.lookup.KeyValueTensorInitializer(
            tf.constant(words), tf.range(len(words), dtype=tf.int64)
        )
        self.ids = tf.lookup.StaticHashTable(pairs, default_value=-1)
        self.num_words = len(words)
        self.idf = self.add_weight(
            name="idf", shape=[self.num_words], initializer=lambda *_, **__: tf.constant(idf)
        )

    def call(self, texts: tf.Tensor) -> tf.SparseTensor:
        """Returns a `tf.SparseTensor [B, V]` float32 for texts `[B]`."""
        batch = tf.size(texts, tf.int64)
        lower = tf.strings.lower(texts, encoding="utf-8")
        cut = tf.strings.split(tf.strings.regex_replace(lower, r"[^\pL\pN]+", " "))
        ids = self.ids.lookup(cut.values)
        known = ids >= 0
        places = tf.boolean_mask(cut.value_rowids() * self.num_words + ids, known)
        places, _, counts = tf.unique_with_counts(tf.sort(places))
        rows, ids = places // self.num_words, places % self.num_words
        values = tf.cast(counts, tf.float32) * tf.gather(self.idf, ids)
        lengths = tf.sqrt(tf.math.unsorted_segment_sum(values**2, rows, batch))
        return tf.SparseTensor(
            tf.stack([rows, ids], axis=1),
            values / tf.gather(lengths, rows),
            tf.stack([batch, self.num_words]),
        )
