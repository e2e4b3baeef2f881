# SPDX-License-Identifier: Apache-2.0
"""Each index over a head's rows says, before it is built, which weights and memory it will need."""

from __future__ import annotations

from collections import Counter

import numpy as np
import tensorflow as tf

from tfx_largeout.indexes import DWTAHash, HashIndex, InvertedMultiIndex, SimHash
from tfx_largeout.indexes.label_intervals import LabelIntervals

CLASSES, WIDTH = 5000, 8


def indexes():
    by_length = {"similarity": "inner_product", "num_tables": 7}
    yield HashIndex(SimHash(), **by_length)
    yield HashIndex(SimHash(), length_ranges=3, **by_length)
    yield HashIndex(DWTAHash(4), hashes_per_table=2, num_tables=5)
    yield InvertedMultiIndex(num_words=6)
    yield InvertedMultiIndex(num_words=6, quantization="pq")
    yield InvertedMultiIndex(num_words=6, counts=np.arange(1, CLASSES + 1))
    yield LabelIntervals()


def test_the_weights_of_classes_are_those_that_were_announced():
    kernel = np.random.default_rng(0).normal(size=(CLASSES, WIDTH)).astype("float32")
    for index in indexes():
        announced = Counter((w.shape, w.dtype) for w in index.weights_of(CLASSES, WIDTH))
        index.rebuild(tf.Variable(kernel), tf.Variable(tf.zeros([CLASSES])))
        made = Counter((tuple(w.shape), w.dtype) for w in index.variables)
        assert announced <= made, index.name
        assert all(np.prod(shape) < CLASSES for shape, _ in made - announced), index.name


def test_the_memory_of_a_rebuild_is_in_proportion_to_the_classes():
    for index in indexes():
        few, many = index.workspace(CLASSES), index.workspace(10 * CLASSES)
        assert many == 10 * few
        assert (few == 0) == isinstance(index, LabelIntervals)
