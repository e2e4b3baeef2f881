# SPDX-License-Identifier: Apache-2.0
"""Data and tests of the samplers that draw from a softmax, of W or of codes of its rows."""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf
from loading import assert_goes_on_when_loaded
from samplers.drawing import assert_mean

import tfx_largeout as tlo
from tfx_largeout.labels import Labels

CLASSES, WIDTH, BATCH = 300, 6, 11
RNG = np.random.default_rng(3)
KERNEL = RNG.standard_normal((CLASSES, WIDTH)).astype(np.float32)
BIAS = RNG.standard_normal(CLASSES).astype(np.float32)
HIDDEN = RNG.standard_normal((BATCH, WIDTH)).astype(np.float32)
LABELS = np.stack([np.arange(BATCH), np.full(BATCH, -1)], axis=1)
LABELS[4, 1] = 130
SEED = tf.constant([3, 1])


def assert_shares(counts, p):
    """Demands that counts of draws are within 4 standard errors; rare classes count as one."""
    number = counts.sum()
    often = number * p > 20  # the number of others is far from normal
    assert counts.size == p.size and often.any()
    counts, p = (np.append(x[often], x[~often].sum()) for x in (counts, p))
    assert p[-1] * number > 20
    distance = np.abs(counts - number * p)
    np.testing.assert_array_less(distance, 4 * np.sqrt(number * p * (1 - p)) + 1e-9)


def assert_independent(ids, p):
    """Demands that places share classes as often as independent draws: within a row, and across."""
    same = (p**2).sum()
    for first, second in [(0, 1), (0, 7), (3, 4)]:
        assert_mean((ids[:, first] == ids[:, second])[:, np.newaxis], same)
        assert_mean((ids[:-1, first] == ids[1:, second])[:, np.newaxis], same)


def assert_empty_batch_has_no_candidates(sampler, weights, shape):
    sampler.build(CLASSES)

    def run(hidden, ids):
        return sampler.sample(hidden, Labels(ids), SEED, weights)

    for way in (run, tf.function(run, autograph=False)):
        candidates = way(tf.zeros([0, WIDTH]), tf.zeros([0, 1], tf.int64))
        assert candidates.ids.shape == candidates.log_expected.shape == shape
        assert np.all(candidates.ids == -1)


def model_of(sampler, loss, **options):
    head = tlo.heads.SampledHead(CLASSES, sampler, tlo.optimizers.RowAdam(0.05), seed=1, **options)
    model = keras.Sequential([keras.Input([WIDTH]), keras.layers.Dense(WIDTH), head])
    model.compile(keras.optimizers.SGD(0.1), loss=loss)
    return model


def assert_learns_and_goes_on(model, less, path, epochs=1):
    """Demands a falling loss, and that a loaded model goes on bit for bit."""
    x, y = np.tile(HIDDEN, (4, 1)), np.tile(LABELS, (4, 1))
    before = model.evaluate(x, y, verbose=0)
    model.fit(x, y, batch_size=BATCH, epochs=15, verbose=0)
    assert model.evaluate(x, y, verbose=0) < before - less
    assert_goes_on_when_loaded(model, x, y, path, batch_size=BATCH, epochs=epochs)
