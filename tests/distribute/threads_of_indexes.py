# SPDX-License-Identifier: Apache-2.0
"""Hash indexes and samplers that look at W over workers, as threads. As a program: checks them."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import tensorflow as tf
import training
from threads import SIZE, H, Y, compare_steps, on_all, run_checks

import tfx_largeout as tlo
from tfx_largeout.distribute.workers import ALONE
from tfx_largeout.labels import normalize_labels
from tfx_largeout.ops.class_rows import ClassRows


def check_samplers_that_look_at_weights(loss=tlo.losses.ActiveSetSoftmax):
    for name in training.LOOKING:
        compare_steps(lambda n=name: training.looking(n), loss(), SIZE)


@pytest.mark.thorough
def check_the_same_with_another_loss():
    check_samplers_that_look_at_weights(tlo.losses.ComplementarySum)


def check_indexes_follow_w(names=("shared", "label")):
    """After 30 steps each bucket has the classes that it has in one process."""

    def run(workers, name):
        head = training.looking(name, optimizer=tlo.optimizers.RowAdagrad(0.5))
        head.build((None, training.WIDTH))
        h, labels = tf.constant(H), normalize_labels(Y, training.CLASSES)
        loss = tlo.losses.ComplementarySum()

        @tf.function(autograph=False)
        def step():
            with tf.GradientTape() as tape:
                tape.watch(h)
                kind = loss.trains_on
                values = loss.from_statistics(head.statistics(kind, h, labels, training=True))
            gradient = tape.gradient(values, h)
            head.take_step()
            return gradient

        for _ in range(30):
            step()
        tables = [x.numpy() for x in (head.index.entries, head.index.starts)]
        return {
            "kernel": head.kernel.numpy(),
            "buckets": buckets(*tables, workers.rank, workers.size),
            "radius": head.index.radius.numpy(),
            "schedule": head.index.schedule.numpy()[:3],
        }

    for name in names:
        expected, parts = run(ALONE, name), on_all(lambda w, n=name: run(w, n))
        for rank, part in enumerate(parts):
            np.testing.assert_allclose(part["kernel"], expected["kernel"][rank::2], atol=1e-5)
            np.testing.assert_allclose(part["radius"], expected["radius"], rtol=1e-6)
            np.testing.assert_allclose(part["schedule"], expected["schedule"])
        for table, want in enumerate(expected["buckets"]):
            pairs = zip(*(part["buckets"][table] for part in parts), strict=True)
            found = [sorted(even + odd) for even, odd in pairs]
            assert found == want, (name, table)


@pytest.mark.thorough
def check_other_indexes_follow_w():
    check_indexes_follow_w(("own", "unused"))


def buckets(entries, starts, first, stride):
    """The classes of each bucket, by table."""
    classes = (first + stride * entries).tolist()
    ends = zip(classes, starts.tolist(), strict=True)
    return [[ids[a:b] for a, b in itertools.pairwise(of_table)] for ids, of_table in ends]


def check_candidates_that_are_cut_off():
    """As many as in one process, and the same but in the turn that does not fit."""
    kernel = np.random.default_rng(3).normal(size=[training.CLASSES, training.WIDTH])
    queries, seed = tf.constant(H[:, np.newaxis]), tf.constant([3, 4], tf.int64)

    def run(workers, budget, per_example):
        index = training.wta()
        index.spread(ClassRows(workers, training.CLASSES, "index"))
        index.rebuild(tf.Variable(kernel[workers.rank :: workers.size].astype("float32")))
        return index.candidates(queries, budget, seed, per_example).numpy()

    every = run(ALONE, training.CLASSES, True)
    for budget in (1, 7, 40, 150):
        expected = run(ALONE, budget, True)
        found = np.concatenate(on_all(lambda w, s=budget: run(w, s, True), SIZE), axis=1)
        np.testing.assert_array_equal((found >= 0).sum(axis=1), (expected >= 0).sum(axis=1))
        for ids, want, possible in zip(found, expected, every, strict=True):
            ids, want = set(ids) - {-1}, set(want) - {-1}
            assert ids <= set(possible) and len(ids - want) <= 20, ids - want
        shared = on_all(lambda w, s=budget: run(w, s, False), SIZE)
        for ids in shared:
            np.testing.assert_array_equal(ids, run(ALONE, budget, False))


def check_top_k_by_an_index():
    def run(workers, k):
        head = training.looking("shared")
        head.build((None, training.WIDTH))
        layer = tlo.TopK(head, k, index=head.index, num_found=training.CLASSES)
        return layer(tf.constant(H[workers.rank :: workers.size]))

    for k in (5, 150):  # more than each worker has
        scores, ids = run(ALONE, k)
        for rank, (own_scores, own_ids) in enumerate(on_all(lambda w, k=k: run(w, k), SIZE)):
            np.testing.assert_array_equal(own_ids, ids[rank::SIZE])
            np.testing.assert_allclose(own_scores, scores[rank::SIZE], rtol=1e-6)


def check_top_k_by_an_index_without_excluded_classes():
    seen = np.random.default_rng(5).integers(-1, training.CLASSES, [len(H), 30])

    def run(workers):
        head = training.looking("shared")
        head.build((None, training.WIDTH))
        layer = tlo.TopK(head, 5, index=head.index, num_found=training.CLASSES)
        own = slice(workers.rank, None, workers.size)
        return layer(tf.constant(H[own]), exclude=seen[own])

    scores, ids = run(ALONE)
    assert not any(set(found) & set(out) for found, out in zip(ids.numpy(), seen, strict=True))
    for rank, (own_scores, own_ids) in enumerate(on_all(run, SIZE)):
        np.testing.assert_array_equal(own_ids, ids[rank::SIZE])
        np.testing.assert_allclose(own_scores, scores[rank::SIZE], rtol=1e-6)


def check_an_index_of_all_rows_gives_way():
    """An index loaded from one process's file is over rows that no worker has."""
    kernel = tf.Variable(tf.random.normal([training.CLASSES, training.WIDTH]))
    indexes = tlo.indexes.RowBounds(), tlo.indexes.InvertedFile(num_lists=5)

    def run(workers, index):
        head = training.looking("shared")
        head.build((None, training.WIDTH))
        return tlo.TopK(head, 5, index=index)(tf.constant(H[workers.rank :: workers.size]))

    expected = on_all(lambda w: run(w, None))
    for index in indexes:
        index.rebuild(kernel)
        for own, exact in zip(on_all(lambda w, i=index: run(w, i)), expected, strict=True):
            np.testing.assert_array_equal(own, exact)


if __name__ == "__main__":
    run_checks(globals())
