# SPDX-License-Identifier: Apache-2.0
"""Many draws of one sampler, stacked."""

from __future__ import annotations

import functools

import numpy as np
import tensorflow as tf
from samplers.samplers_table import BIAS, CLASSES

from tfx_largeout.labels import Labels
from tfx_largeout.samplers import Candidates
from tfx_largeout.samplers.base import OutputWeights

WIDTH = 3
WEIGHTS = OutputWeights(tf.Variable(tf.ones([CLASSES, WIDTH])), tf.Variable(BIAS, dtype="float32"))


def weights_of(sampler):
    """Weights for a sampler that uses W: for the hidden activations here, its logits are BIAS."""
    if not sampler.looks_at_weights:
        return None
    return WEIGHTS._replace(index=_index_of(sampler)) if sampler.needs_index else WEIGHTS


@functools.cache
def _index_of(sampler):
    with tf.init_scope():
        index = sampler.default_index()
        index.rebuild(WEIGHTS.kernel, WEIGHTS.bias)
    return index


def labels_of(ids):
    return Labels(tf.constant(np.asarray(ids), tf.int64))


def zipf_batches(number, size, num_classes):
    """Batches `[size, 1]` of one label per example; class c has a share of 1 / (c + 1)."""
    weights = 1 / np.arange(1, num_classes + 1)
    shape = number, size, 1
    return np.random.default_rng(0).choice(num_classes, shape, p=weights / weights.sum())


def draw(sampler, labels, seed=(1, 2)):
    """One draw for as many examples as there are rows of labels."""
    labels = labels_of(labels)
    hidden = tf.zeros([labels.ids.shape[0], WIDTH])
    return sampler.sample(hidden, labels, tf.constant(seed), weights_of(sampler))


def many_draws(sampler, label, count):
    """`count` draws for one label: arrays ids and log E `[count, width]`, log E of the label."""
    if sampler.per_example:
        drawn = draw(sampler, np.full([count, 1], label))
    else:
        drawn = _one_by_one(sampler, label, count)
    return [np.asarray(field) for field in drawn]


def _one_by_one(sampler, label, count):
    labels, hidden = labels_of([[label]]), tf.zeros([1, WIDTH])
    width, weights = 3 * sampler.num_classes, weights_of(sampler)

    def padded(values, padding):
        return tf.pad(values, [[0, width - tf.size(values)]], constant_values=padding)

    @tf.function(autograph=False)
    def run():
        def one(step):
            ids, log_expected, true_log_expected = sampler.sample(
                hidden, labels, tf.stack([5, step]), weights
            )
            return padded(ids, -1), padded(log_expected, 0.0), true_log_expected[0]

        signature = (
            tf.TensorSpec([width], tf.int64),
            tf.TensorSpec([width], tf.float32),
            tf.TensorSpec([1], tf.float32),
        )
        return tf.map_fn(one, tf.range(count), fn_output_signature=signature)

    return Candidates(*run())


def counts_of_draws(ids, num_classes):
    """How often each class is in each draw, `[draws, C]`."""
    counts = np.zeros((ids.shape[0], num_classes))
    rows = np.broadcast_to(np.arange(ids.shape[0])[:, None], ids.shape)
    np.add.at(counts, (rows[ids >= 0], ids[ids >= 0]), 1)
    return counts


def assert_mean(values, expected, errors=4.0):
    """Demands that the mean over draws (rows) is as expected, within 4 standard errors."""
    values = np.asarray(values, np.float64)
    error = values.std(axis=0, ddof=1) / np.sqrt(len(values))
    distance = np.abs(values.mean(axis=0) - expected)
    np.testing.assert_array_less(distance, errors * error + 1e-5 * np.abs(expected) + 1e-12)


def assert_one_over_expected(ids, log_expected, counts):
    """Each draw has its own E: a class counts 1 / E where it was drawn, 1 on average."""
    draws, inverse = len(counts), np.zeros(counts.shape)
    rows = np.broadcast_to(np.arange(draws)[:, None], ids.shape)
    there = ids >= 0
    np.add.at(inverse, (rows[there], ids[there]), np.exp(-log_expected[there].astype(np.float64)))
    times = counts.sum(axis=0)
    varies = (times > 30) & (times < draws - 30)  # the mean of the others is not normal
    assert varies.sum() >= 12
    assert_mean(inverse[:, varies], 1.0)
