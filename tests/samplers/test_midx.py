# SPDX-License-Identifier: Apache-2.0
"""MIDX: draws from the softmax over coded rows, with their exact probabilities."""

from __future__ import annotations

import json

import keras
import numpy as np
import pytest
import tensorflow as tf
from oracles import inverted_multi_index as oracle
from oracles import softmax
from samplers.drawing import assert_mean, labels_of
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
from variants import cases_of

import tfx_largeout as tlo
from tfx_largeout.indexes import HashIndex, InvertedMultiIndex
from tfx_largeout.samplers import MIDX
from tfx_largeout.samplers.base import OutputWeights

COUNTS = np.random.default_rng(0).integers(1, 1000, CLASSES)

quantizations = pytest.mark.parametrize("quantization", ["pq", "rq"])
own_or_shared = pytest.mark.parametrize("per_example", [True, False], ids=["own", "shared"])


def weights_of(index, kernel=KERNEL, bias=BIAS):
    weights = OutputWeights(
        tf.Variable(kernel), None if bias is None else tf.Variable(bias), index=index
    )
    index.rebuild(weights.kernel, weights.bias)
    return weights


def index_of(kernel=KERNEL, bias=BIAS, **options):
    index = InvertedMultiIndex(**{"num_words": 8, **options})
    weights_of(index, kernel, bias)
    return index


def drawn(index, num_sampled, hidden=HIDDEN, labels=LABELS, per_example=True, seed=SEED):
    sampler = MIDX(num_sampled, per_example=per_example)
    sampler.build(index.codes.shape[0])
    weights = OutputWeights(tf.zeros([1, 1]), index=index)
    return sampler.sample(tf.constant(hidden), labels_of(labels), seed, weights)


def q_of(index, hidden=HIDDEN, **of_weights):
    """q(c|h) by its definition, from the words and codes that the index holds."""
    words = [np.asarray(x, np.float64) for x in (index.first_words, index.second_words)]
    of_classes = np.broadcast_to(oracle.weights(**of_weights), index.codes.shape)
    codes = index.codes.numpy()
    return oracle.distribution(hidden, codes, *words, of_classes, index.quantization)


@quantizations
@pytest.mark.parametrize(
    "options",
    [{}, {"with_bias": False}, {"counts": COUNTS, "power": 0.5}],
    ids=["bias", "no_bias", "counts"],
)
def test_log_expected_counts_are_those_of_the_softmax_over_coded_rows(quantization, options):
    index = index_of(quantization=quantization, **options)
    arguments = {name: options[name] for name in ("counts", "power") if name in options}
    q = q_of(index, bias=BIAS if options.get("with_bias", True) else None, **arguments)
    for per_example in (True, False):
        candidates = drawn(index, 50, per_example=per_example)
        claims = np.log(50) + np.log(q if per_example else np.repeat(q.mean(0)[None], BATCH, 0))
        ids = candidates.ids.numpy()
        assert ids.shape == ((BATCH, 50) if per_example else (50,))
        of_ids = np.take_along_axis(claims, np.broadcast_to(ids, (BATCH, 50)), axis=1)
        np.testing.assert_allclose(
            candidates.log_expected, of_ids if per_example else of_ids[0], rtol=2e-5, atol=2e-5
        )
        of_labels = np.take_along_axis(claims, np.maximum(LABELS, 0), axis=1)
        np.testing.assert_allclose(
            candidates.true_log_expected,
            np.where(LABELS < 0, 0, of_labels),
            rtol=2e-5,
            atol=2e-5,
        )


@quantizations
@own_or_shared
def test_the_probabilities_of_all_classes_add_up_to_one(quantization, per_example):
    index = index_of(quantization=quantization)
    labels = np.tile(np.arange(CLASSES), (BATCH, 1))
    log_expected = drawn(index, 7, labels=labels, per_example=per_example).true_log_expected
    sums = np.exp(log_expected.numpy().astype(np.float64)).sum(axis=1)
    np.testing.assert_allclose(sums, 7, rtol=1e-6)


@quantizations
@cases_of("num_words", [8, 1, 7, 40])
def test_classes_are_drawn_as_often_as_is_said(quantization, num_words):
    index = index_of(quantization=quantization, num_words=num_words)
    draws, hidden = 20_000, 2 * HIDDEN[:3]
    q = q_of(index, hidden, bias=BIAS)
    own = drawn(index, draws, hidden, np.zeros([3, 1], int)).ids.numpy()
    shared = drawn(index, draws, hidden, np.zeros([3, 1], int), per_example=False).ids.numpy()
    for ids, p in zip([*own, shared], [*q, q.mean(axis=0)], strict=True):
        assert_shares(np.bincount(ids, minlength=CLASSES), p)


def test_draws_are_independent():
    draws = 3000
    index = index_of()
    hidden = np.repeat(HIDDEN[:1], draws, axis=0)
    ids = drawn(index, 8, hidden, np.zeros([draws, 1], int)).ids.numpy()
    assert_independent(ids, q_of(index, HIDDEN[:1], bias=BIAS))


@quantizations
@own_or_shared
@pytest.mark.parametrize("is_stale", [False, True], ids=["fresh", "stale"])
def test_the_estimate_of_z_is_unbiased_whatever_the_codes(quantization, per_example, is_stale):
    index = index_of(quantization=quantization)
    rng = np.random.default_rng(8)
    kernel = rng.standard_normal(KERNEL.shape) if is_stale else KERNEL
    scores = softmax.logits(HIDDEN[:1], kernel, BIAS)[0]
    rounds, each = 4000, 5
    if per_example:
        hidden, labels = np.repeat(HIDDEN[:1], rounds, axis=0), np.zeros([rounds, 1], int)
        ids, log_expected, _ = drawn(index, each, hidden, labels)
    else:
        # One batch of two examples: the estimate for the first of them.
        ids, log_expected, _ = drawn(
            index, rounds * each, HIDDEN[:2], [[0], [1]], per_example=False
        )
        log_expected -= np.log(rounds)
    terms = np.exp(scores[ids.numpy()] - log_expected.numpy()).reshape(rounds, each)
    assert_mean(terms.sum(axis=1), np.exp(scores).sum())


@quantizations
def test_one_word_draws_by_weights_alone(quantization):
    labels = np.tile(np.arange(CLASSES), (BATCH, 1))
    for bias, p in ((None, 1 / CLASSES), (BIAS, oracle.weights(BIAS) / oracle.weights(BIAS).sum())):
        index = index_of(bias=bias, quantization=quantization, num_words=1)
        log_expected = drawn(index, 1, labels=labels).true_log_expected
        np.testing.assert_allclose(np.exp(log_expected) - p, 0, atol=1e-6)


@quantizations
def test_a_word_for_each_row_draws_from_the_softmax(quantization):
    index = index_of(quantization=quantization, num_words=CLASSES)
    labels = np.tile(np.arange(CLASSES), (BATCH, 1))
    log_expected = drawn(index, 1, labels=labels).true_log_expected
    exact = softmax.log_softmax(softmax.logits(HIDDEN, KERNEL, BIAS))
    np.testing.assert_allclose(log_expected, exact, rtol=2e-5, atol=2e-5)


@own_or_shared
def test_great_scores_and_biases_are_no_problem(per_example):
    bias = np.where(np.arange(CLASSES) % 3, -2000.0, 0.0).astype(np.float32)
    index = index_of(KERNEL, bias)
    for scale in (1.0, 1e4):
        candidates = drawn(index, 500, scale * HIDDEN, per_example=per_example)
        assert np.all(np.isfinite(candidates.log_expected)) and np.all(candidates.ids >= 0)
        assert np.all(np.isfinite(candidates.true_log_expected))
        assert scale > 1 or np.all(candidates.ids % 3 == 0)


@own_or_shared
def test_hidden_activations_that_are_not_finite_get_no_candidates(per_example):
    hidden = HIDDEN.copy()
    hidden[2, 1] = np.nan
    candidates = drawn(index_of(), 5, hidden, per_example=per_example)
    has_none = candidates.ids.numpy() == -1
    assert has_none.all() if not per_example else has_none[2].all() and has_none.sum() == 5
    assert np.all(candidates.log_expected.numpy()[has_none] == 0)


@own_or_shared
def test_an_empty_batch_has_no_candidates(per_example):
    sampler, shape = MIDX(4, per_example=per_example), (0, 4) if per_example else (4,)
    assert_empty_batch_has_no_candidates(sampler, weights_of(InvertedMultiIndex(8)), shape)


def follows(**options):
    return InvertedMultiIndex(8, first_period=4, **options)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("loss", "index", "per_example"),
    [
        ("ComplementarySum", lambda: follows(quantization="pq"), True),
        ("SampledSoftmax", lambda: follows(codebook_rounds=3, counts=COUNTS, power=0.5), False),
        ("ComplementarySum", lambda: None, True),
    ],
)
@pytest.mark.cpu
def test_a_model_learns_and_goes_on_bit_for_bit_when_loaded(loss, index, per_example, tmp_path):
    keras.utils.set_random_seed(2)
    sampler = MIDX(20, 8, per_example=per_example)
    model = model_of(sampler, getattr(tlo.losses, loss)(), index=index())
    assert_learns_and_goes_on(model, 0.5, tmp_path, epochs=3)


def test_a_config_makes_the_same_sampler():
    sampler = MIDX(7, 16, "pq", per_example=False)
    config = json.loads(json.dumps(keras.saving.serialize_keras_object(sampler)))
    copy = keras.saving.deserialize_keras_object(config)
    assert copy.get_config() == sampler.get_config()
    index = copy.default_index()
    assert (index.num_words, index.quantization) == (16, "pq")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: MIDX(0), "num_sampled must be an integer of at least 1; got 0"),
        (lambda: MIDX(5, 0), "num_words must be an integer of at least 1; got 0"),
        (lambda: MIDX(5, 5000), "num_words must be at most 4096; got 5000"),
        (lambda: MIDX(5, 8, "opq"), "quantization must be one of 'pq', 'rq'; got 'opq'"),
    ],
)
def test_arguments(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_a_head_wants_an_index_that_fits_the_sampler():
    with pytest.raises(TypeError, match="index must be an InvertedMultiIndex for MIDX; got <Hash"):
        model_of(MIDX(5), None, index=HashIndex())
    with pytest.raises(TypeError, match="index must be a HashIndex for WTATopK; got <Inverted"):
        model_of(tlo.samplers.WTATopK(5), None, index=InvertedMultiIndex(8))


def test_it_needs_weights_and_an_index():
    sampler = MIDX(3)
    sampler.build(CLASSES)
    with pytest.raises(ValueError, match=r"weights\.kernel must be .*MIDX"):
        sampler.sample(HIDDEN, labels_of(LABELS), SEED)
    with pytest.raises(ValueError, match=r"weights\.index must be .*for MIDX"):
        sampler.sample(HIDDEN, labels_of(LABELS), SEED, OutputWeights(tf.Variable(KERNEL)))
