# SPDX-License-Identifier: Apache-2.0
"""LabelIntervals: how many batches lie between two that have a class, from the stream of labels."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from oracles import samplers as oracle
from samplers.drawing import labels_of, zipf_batches

from tfx_largeout.indexes.label_intervals import LabelIntervals
from tfx_largeout.labels import Labels

CLASSES, BATCH = 30, 8


def index_of(decay):
    index = LabelIntervals(decay)
    index.rebuild(tf.Variable(tf.zeros([CLASSES, 4])))
    return index


@pytest.mark.parametrize("decay", [0.01, 0.3])
def test_intervals_are_those_of_the_paper(decay):
    batches, index = zipf_batches(40, BATCH, CLASSES), index_of(decay)
    after = oracle.label_intervals(batches[..., 0].tolist(), CLASSES, decay)
    for labels, expected in zip(batches, after, strict=True):
        arrivals = index.arrivals(labels_of(labels))  # the estimate after the batch, not yet noted
        np.testing.assert_allclose(arrivals.intervals, expected[arrivals.ids], rtol=1e-6)
        index.note(labels_of(labels))
        np.testing.assert_allclose(index.intervals, expected, rtol=1e-6)


def test_after_many_batches_it_is_how_often_a_batch_has_the_class():
    batches, index = zipf_batches(1500, BATCH, CLASSES), index_of(0.001)
    note = tf.function(lambda ids: index.note(Labels(ids)))
    for labels in batches:
        note(tf.constant(labels, tf.int64))
    has = np.array([np.isin(np.arange(CLASSES), batch) for batch in batches]).mean(axis=0)
    np.testing.assert_allclose(1 / index.intervals.numpy(), has, rtol=0.1)


def test_earlier_labels_are_those_of_the_last_batches():
    index = index_of(0.1)
    for labels in ([[3], [5]], [[7], [3]], [[9], [9]]):
        index.note(labels_of(labels))
    ids, _ = index.earlier(2, tf.constant([9], tf.int64))
    assert sorted(ids.numpy().tolist()) == [3, 7]
