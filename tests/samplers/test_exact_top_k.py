# SPDX-License-Identifier: Apache-2.0
"""ExactTopK: each example's classes with the greatest logits."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfx_largeout as tlo
from tfx_largeout.labels import Labels
from tfx_largeout.samplers import ExactTopK
from tfx_largeout.samplers.base import OutputWeights

CLASSES, WIDTH, BATCH = 90, 6, 11
RNG = np.random.default_rng(3)
KERNEL = RNG.standard_normal((CLASSES, WIDTH)).astype(np.float32)
BIAS = RNG.standard_normal(CLASSES).astype(np.float32)
HIDDEN = RNG.standard_normal((BATCH, WIDTH)).astype(np.float32)
LABELS = np.stack([np.arange(BATCH), np.full(BATCH, -1)], axis=1)


def drawn(k, bias=BIAS):
    sampler = ExactTopK(k)
    sampler.build(CLASSES)
    weights = OutputWeights(tf.Variable(KERNEL), None if bias is None else tf.Variable(bias))
    labels = Labels(tf.constant(LABELS, tf.int64))
    return sampler.sample(HIDDEN, labels, tf.constant([0, 1]), weights)


@pytest.mark.parametrize("bias", [BIAS, None], ids=["bias", "no_bias"])
@pytest.mark.parametrize("k", [1, 7, CLASSES])
def test_the_greatest_logits_by_falling_logit(k, bias):
    candidates = drawn(k, bias)
    logits = HIDDEN.astype(float) @ KERNEL.T + (0 if bias is None else bias)
    np.testing.assert_array_equal(candidates.ids, np.argsort(-logits, axis=1)[:, :k])
    np.testing.assert_array_equal(candidates.log_expected, np.zeros((BATCH, k)))
    np.testing.assert_array_equal(candidates.true_log_expected, np.zeros(LABELS.shape))


def trained(head, loss):
    model = keras.Sequential([keras.Input([WIDTH]), keras.layers.Dense(WIDTH), head])
    model.compile(keras.optimizers.SGD(0.1), loss=loss)
    model.layers[0].set_weights([np.eye(WIDTH), np.zeros(WIDTH)])
    head.kernel.assign(KERNEL)
    model.fit(HIDDEN, LABELS, batch_size=BATCH, epochs=3, shuffle=False, verbose=0)
    return [w.numpy() for w in (*model.layers[0].weights, head.kernel, head.bias)]


def test_with_all_classes_training_is_that_of_the_full_softmax():
    sampled = tlo.heads.SampledHead(CLASSES, ExactTopK(CLASSES), tlo.optimizers.RowSGD(0.1))
    ours = trained(sampled, tlo.losses.ActiveSetSoftmax())
    dense = trained(tlo.heads.DenseHead(CLASSES), tlo.losses.SoftmaxCrossentropy())
    for a, b in zip(ours, dense, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_it_needs_weights():
    sampler = ExactTopK(3)
    sampler.build(CLASSES)
    with pytest.raises(
        ValueError, match=r"weights\.kernel must be the kernel of a head, as ExactTopK"
    ):
        sampler.sample(HIDDEN, Labels(tf.constant(LABELS, tf.int64)), tf.constant([0, 1]))


def test_a_config_makes_the_same_sampler():
    config = keras.saving.serialize_keras_object(ExactTopK(7))
    assert keras.saving.deserialize_keras_object(config).get_config() == {"k": 7}


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: ExactTopK(0), "k must be an integer of at least 1; got 0"),
        (lambda: drawn(CLASSES + 1), f"k must be at most num_classes={CLASSES}; got {CLASSES + 1}"),
    ],
)
def test_bad_arguments_are_refused(make, match):
    with pytest.raises(ValueError, match=match):
        make()
