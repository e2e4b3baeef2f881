# SPDX-License-Identifier: Apache-2.0
"""ExactSoftmaxSampler: draws from the softmax, per example."""

from __future__ import annotations

import json

import keras
import numpy as np
import pytest
import tensorflow as tf
from oracles import softmax
from samplers.drawing import assert_mean, counts_of_draws, labels_of
from samplers.softmax_cases import (
    BATCH,
    BIAS,
    CLASSES,
    HIDDEN,
    KERNEL,
    LABELS,
    SEED,
    assert_empty_batch_has_no_candidates,
    assert_independent,
    assert_learns_and_goes_on,
    assert_shares,
    model_of,
)
from variants import cases_of, thorough

import tfx_largeout as tlo
from tfx_largeout.ops.exact import logit_blocks
from tfx_largeout.ops.exact.softmax_draws import softmax_draws
from tfx_largeout.samplers import ExactSoftmaxSampler
from tfx_largeout.samplers.base import OutputWeights
from tfx_largeout.statistics import CandidateStatistics


def log_softmax(hidden=HIDDEN, kernel=KERNEL, bias=BIAS):
    return softmax.log_softmax(softmax.logits(hidden, kernel, bias))


def drawn(num_sampled, kernel=KERNEL, bias=BIAS, hidden=HIDDEN, labels=LABELS, seed=SEED):
    sampler = ExactSoftmaxSampler(num_sampled)
    sampler.build(len(kernel))
    weights = OutputWeights(tf.Variable(kernel), None if bias is None else tf.Variable(bias))
    return sampler.sample(tf.constant(hidden), labels_of(labels), seed, weights)


@pytest.fixture(params=[2**20, 64 * 100], ids=["a_block", "blocks"])
def blocks(request, monkeypatch):
    """All classes in a block; or blocks of 64 and 100 classes for hidden [100, D] and fewer."""
    monkeypatch.setattr(logit_blocks, "_BLOCK_ELEMENTS", request.param)


def test_draws_take_small_blocks_on_a_gpu_too(monkeypatch):
    monkeypatch.setattr(logit_blocks, "_BLOCK_ELEMENTS", 64 * BATCH)
    arguments = tf.constant(HIDDEN), tf.Variable(KERNEL), tf.Variable(BIAS), 50, SEED
    of_cpu, _ = softmax_draws(*arguments)
    monkeypatch.setattr(logit_blocks, "is_on_gpu", lambda _: True)
    of_gpu, _ = softmax_draws(*arguments)  # other blocks, other draws
    np.testing.assert_array_equal(of_gpu, of_cpu)


@pytest.mark.usefixtures("blocks")
@pytest.mark.parametrize("bias", [BIAS, None], ids=["bias", "no_bias"])
def test_log_expected_counts_are_those_of_the_softmax(bias):
    candidates = drawn(50, bias=bias)
    log_expected = np.log(50) + log_softmax(bias=bias)
    ids = candidates.ids.numpy()
    assert ids.shape == (BATCH, 50)
    np.testing.assert_allclose(
        candidates.log_expected, np.take_along_axis(log_expected, ids, axis=1), rtol=1e-5, atol=1e-5
    )
    of_labels = np.take_along_axis(log_expected, np.maximum(LABELS, 0), axis=1)
    np.testing.assert_allclose(
        candidates.true_log_expected, np.where(LABELS < 0, 0, of_labels), rtol=1e-5, atol=1e-5
    )


@pytest.mark.usefixtures("blocks")
@cases_of("scale", [1.0, 2.0, 0.0])
def test_classes_are_drawn_as_often_as_the_softmax_says(scale):
    draws = 400
    hidden = np.repeat(scale * HIDDEN[:3], draws, axis=0)
    labels = np.zeros([len(hidden), 1], int)
    ids = drawn(30, hidden=hidden, labels=labels).ids.numpy()
    p = np.exp(log_softmax(scale * HIDDEN[:3]))
    for example in range(3):
        counts = counts_of_draws(ids[example * draws : (example + 1) * draws], CLASSES)
        assert_shares(counts.sum(axis=0), p[example])


@pytest.mark.usefixtures("blocks")
def test_draws_are_independent():
    draws = 3000
    hidden = np.repeat(HIDDEN[:1], draws, axis=0)
    ids = drawn(8, hidden=hidden, labels=np.zeros([draws, 1], int)).ids.numpy()
    assert_independent(ids, np.exp(log_softmax(HIDDEN[:1])))
    # The number of draws of a class for an example is binomial.
    best = np.argmax(log_softmax(HIDDEN[:1]))
    p = np.exp(log_softmax(HIDDEN[:1]))[0, best]
    counts = (ids == best).sum(axis=1)
    assert_mean(((counts - 8 * p) ** 2)[:, np.newaxis], 8 * p * (1 - p))


@pytest.mark.usefixtures("blocks")
def test_the_estimate_of_z_has_no_variance():
    hidden, scores = 3 * HIDDEN, softmax.logits(3 * HIDDEN, KERNEL, BIAS)
    candidates = drawn(20, hidden=hidden)
    logits = np.take_along_axis(scores, candidates.ids.numpy(), axis=1)
    log_z = np.log(np.exp(scores).sum(axis=1, keepdims=True))
    each = logits - candidates.log_expected.numpy() + np.log(20)
    np.testing.assert_allclose(each, np.broadcast_to(log_z, each.shape), rtol=1e-5)


def test_the_gradient_of_importance_sampling_is_that_of_the_softmax_on_average():
    draws = 3000
    hidden = np.repeat(HIDDEN[:1], draws, axis=0)
    labels = labels_of(np.full([draws, 1], 5))
    ids, log_expected, true_log_expected = drawn(4, hidden=hidden, labels=labels.ids)
    scores = softmax.logits(HIDDEN[:1], KERNEL, BIAS)[0].astype(np.float32)
    logits = tf.gather(tf.constant(scores), ids)
    with tf.GradientTape() as tape:
        tape.watch(logits)
        statistics = CandidateStatistics(
            labels=labels,
            true_logits=tf.fill([draws, 1], scores[5]),
            candidate_logits=logits,
            candidate_ids=ids,
            hits=ids == 5,
            true_log_expected=true_log_expected,
            candidate_log_expected=log_expected,
            log_partition=tf.constant(0.0),
            num_classes=CLASSES,
        )
        loss = tlo.losses.ImportanceSampling().from_statistics(statistics)
    gradient = tape.gradient(loss, logits)
    np.testing.assert_allclose(gradient, np.full(gradient.shape, 1 / 4), rtol=1e-5)
    counts = np.bincount(ids.numpy().ravel(), gradient.numpy().ravel() * 4, CLASSES)
    assert_shares(counts, np.exp(log_softmax(HIDDEN[:1]))[0])


def test_classes_of_probability_zero_are_not_drawn():
    bias = np.where(np.arange(CLASSES) % 3, -2000.0, 0.0).astype(np.float32)
    ids = drawn(500, kernel=0 * KERNEL, bias=bias).ids.numpy()
    assert not np.any(ids % 3)
    assert len(np.unique(ids)) == CLASSES // 3
    ids = drawn(7, kernel=0 * KERNEL, bias=np.where(np.arange(CLASSES) == 299, 0, bias - 2000)).ids
    np.testing.assert_array_equal(ids, np.full([BATCH, 7], 299))


@pytest.mark.usefixtures("blocks")
def test_no_class_is_drawn_where_z_is_not_a_number():
    kernel = KERNEL.copy()
    kernel[5] = np.nan
    ids, log_z = softmax_draws(tf.constant(HIDDEN), tf.constant(kernel), None, 4, SEED)
    np.testing.assert_array_equal(ids, np.full([BATCH, 4], -1))
    assert np.isnan(log_z).all()
    candidates = drawn(4, kernel=kernel)
    np.testing.assert_array_equal(candidates.log_expected, np.zeros([BATCH, 4]))


def test_an_empty_batch_has_no_candidates():
    weights = OutputWeights(tf.Variable(KERNEL))
    assert_empty_batch_has_no_candidates(ExactSoftmaxSampler(4), weights, (0, 4))


@cases_of("dtype", ["bfloat16", "float64", "float16"])
def test_other_dtypes(dtype):
    kernel = tf.cast(KERNEL, dtype)
    hidden = tf.constant(HIDDEN, "float64" if dtype == "float64" else "float32")
    ids, log_z = softmax_draws(hidden, tf.Variable(kernel), None, 9, SEED)
    assert log_z.dtype == hidden.dtype and ids.shape == (BATCH, 9)
    logits = softmax.logits(HIDDEN, tf.cast(kernel, "float64").numpy(), None)
    rtol = 1e-12 if dtype == "float64" else 1e-5
    np.testing.assert_allclose(log_z, np.log(np.exp(logits).sum(axis=1)), rtol=rtol)


@pytest.mark.parametrize(
    "loss", thorough("ComplementarySum", "ImportanceSampling", "SampledSoftmax")
)
@pytest.mark.cpu
def test_a_model_learns_and_goes_on_bit_for_bit_when_loaded(loss, tmp_path):
    keras.utils.set_random_seed(2)
    model = model_of(ExactSoftmaxSampler(20), getattr(tlo.losses, loss)())
    assert_learns_and_goes_on(model, 1, tmp_path)


def test_a_config_makes_the_same_sampler():
    config = json.loads(json.dumps(keras.saving.serialize_keras_object(ExactSoftmaxSampler(7))))
    assert keras.saving.deserialize_keras_object(config).get_config() == {"num_sampled": 7}


@pytest.mark.parametrize("value", [0, -1, 2.5, "all", None, True])
def test_a_number_of_draws_that_is_none_is_refused(value):
    with pytest.raises(ValueError, match="num_sampled must be an integer of at least 1; got"):
        ExactSoftmaxSampler(value)


def test_it_needs_weights():
    sampler = ExactSoftmaxSampler(3)
    sampler.build(CLASSES)
    with pytest.raises(ValueError, match=r"weights\.kernel must be .* as ExactSoftmaxSampler"):
        sampler.sample(HIDDEN, labels_of(LABELS), SEED)
