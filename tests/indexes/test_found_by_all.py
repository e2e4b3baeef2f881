# SPDX-License-Identifier: Apache-2.0
"""What tables of several workers find, merged: as one process would choose."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tfx_largeout.distribute.workers import Workers
from tfx_largeout.indexes import HashIndex
from tfx_largeout.indexes.found_by_all import most_voted
from tfx_largeout.ops.class_rows import ClassRows
from tfx_largeout.ops.hashing.bucket_candidates import BucketCandidates

CLASSES, BUDGET = 21, 5


class Heard(Workers):
    """A worker that hears what was prepared."""

    every: tf.Tensor

    def gather(self, x, name):
        np.testing.assert_array_equal(x, self.every[self.rank])
        return self.every


@pytest.mark.parametrize("first_class", [0, 4, 20])
def test_most_votes_then_the_next_class_from_the_first(first_class):
    votes = np.array([2, 1, 1, 2, 1, 1, 0, 1, 3, 1, 1])  # of classes 2, 3, ..., 12
    classes = np.arange(2, 13)
    order = np.lexsort([(classes - first_class) % CLASSES, -votes])[:BUDGET]
    shares = [ClassRows(Heard(2, rank), CLASSES, "index") for rank in range(2)]
    own = [(rows.of(tf.constant(classes)).numpy() >= 0) for rows in shares]
    padded = np.zeros([2, 2, BUDGET], np.int64)
    found = []
    for rank, here in enumerate(own):
        best = np.lexsort([(classes - first_class) % CLASSES, -np.where(here, votes, -1)])
        best = best[: min(BUDGET, here.sum())]
        padded[rank, :, : len(best)] = classes[best], votes[best]
        rows = shares[rank].of(tf.constant(classes[best]))
        found.append(BucketCandidates(rows, tf.constant(votes[best])))
    for rows, one in zip(shares, found, strict=True):
        rows.workers.every = tf.constant(padded)
        ids = most_voted(rows, one, BUDGET, tf.constant(first_class, tf.int64))
        np.testing.assert_array_equal(ids, np.sort(classes[order]))


def test_only_a_process_with_all_rows_loads_tables():
    kernel = tf.Variable(np.random.default_rng(0).normal(size=[CLASSES, 16]).astype("float32"))
    built, alone, one_of_two = HashIndex(), HashIndex(), HashIndex()
    one_of_two.spread(ClassRows(Heard(2, 0), CLASSES, "index"))
    store: dict = {}
    for index in (built, alone, one_of_two):
        index.build((CLASSES, 16) if index is not one_of_two else (11, 16))
    built.rebuild(kernel)
    built.save_own_variables(store)
    alone.load_own_variables(store)
    np.testing.assert_array_equal(alone.starts, built.starts)
    one_of_two.clock.assign(5)
    one_of_two.load_own_variables(store)
    assert int(one_of_two.clock) == 0
