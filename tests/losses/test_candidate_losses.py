# SPDX-License-Identifier: Apache-2.0
"""The estimators against the oracle, TensorFlow's own losses, and their claims."""

from __future__ import annotations

import functools
import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf
from losses.candidate_cases import CLASSES, examples_of, labels_of, random_case, statistics_of
from oracles import likelihood_estimators as oracle
from oracles import softmax
from variants import product

from tfx_largeout import losses
from tfx_largeout.labels import Labels
from tfx_largeout.statistics import ExactStatistics

LOSSES = {
    "complementary_sum": (losses.ComplementarySum, {}, oracle.complementary_sum),
    "importance": (losses.ImportanceSampling, {}, oracle.importance_sampling),
    "ranking": (losses.Ranking, {}, oracle.ranking),
    "ranking_hinge": (losses.Ranking, {"margin": 1.5, "kind": "hinge"}, oracle.ranking),
    "nce": (losses.NoiseContrastive, {}, oracle.noise_contrastive),
    "nce_without_hits": (
        losses.NoiseContrastive,
        {"log_partition": 1.5, "remove_accidental_hits": True},
        oracle.noise_contrastive,
    ),
    "nce_learned": (
        losses.NoiseContrastive,
        {"log_partition": "learned"},
        oracle.noise_contrastive,
    ),
    "negative_mean": (losses.NegativeSampling, {}, oracle.negative_sampling),
    "negative_sum": (losses.NegativeSampling, {"negatives": "sum"}, oracle.negative_sampling),
    "gbce": (losses.GeneralizedBCE, {}, oracle.generalized_bce),
    "gbce_calibrated": (losses.GeneralizedBCE, {"calibration": 1.0}, oracle.generalized_bce),
    "black_out": (losses.BlackOut, {}, oracle.black_out),
    "sampled_softmax": (losses.SampledSoftmax, {}, oracle.sampled_softmax),
    "active_set": (losses.ActiveSetSoftmax, {}, oracle.active_set_softmax),
    "logistic": (losses.SampledLogistic, {}, oracle.sampled_logistic),
    "logistic_plain": (
        losses.SampledLogistic,
        {"importance_weights": False},
        oracle.sampled_logistic,
    ),
}

SHARED = [3, 0, 7, 7, 11, 5]
OWN = [[3, 0, 7, 7, 11], [2, -1, 9, -1, 4], [-1, 6, 6, 8, 1], [10, 5, 5, 3, 2]]
CASES = {
    "one label, shared": ([[1], [2], [9]], SHARED),
    "one label, hits": ([[7], [3], [9], [0]], SHARED),
    "one label, own": ([[1], [2], [6], [3]], OWN),
    "several labels, shared": ([[1, 2, 8], [3], [7, 0]], SHARED),
    "several labels, own": ([[1, 2], [4, 9], [6], [0]], OWN),
    "candidates padded": ([[1], [5, 2]], [-1, 5, -1, 4]),
    "all candidates are hits": ([[1, 2], [2, 1, 6]], [2, 1, 1]),
    "only padding": ([[1], [2, 3]], [-1, -1]),
    "no candidates": ([[1], [2, 3]], np.zeros(0, int)),
    "own, some without": ([[1], [2, 3]], [[-1, -1], [4, 2]]),
}

every_loss = pytest.mark.parametrize("name", list(LOSSES))


def make(name, /, **arguments):
    loss_class, options, _ = LOSSES[name]
    return loss_class(**options, **arguments)


def oracle_of(name):
    _, options, function = LOSSES[name]
    options = dict(options)
    if "negatives" in options:
        options["negatives_weigh"] = options.pop("negatives")
    return functools.partial(function, **options)


def value_and_gradients(loss, statistics):
    sources = (
        statistics.true_logits,
        statistics.candidate_logits,
        statistics.log_partition,
    )
    with tf.GradientTape() as tape:
        tape.watch(sources)
        values = loss.from_statistics(statistics)
        total = tf.reduce_sum(values)
    gradients = tape.gradient(total, sources, unconnected_gradients="zero")
    return values.numpy(), [gradient.numpy() for gradient in gradients]


def assert_equals_oracle(name, statistics, rtol=1e-5, atol=1e-5):
    values, (true_gradient, candidate_gradient, z_gradient) = value_and_gradients(
        make(name), statistics
    )
    function = oracle_of(name)
    examples, places = examples_of(statistics)
    expected = [function(example) for example in examples]
    np.testing.assert_allclose(values, expected, rtol=rtol, atol=atol)
    z_expected = 0.0
    for i, (example, (labels, there)) in enumerate(zip(examples, places, strict=True)):
        own = oracle.gradients(function, example)
        np.testing.assert_allclose(true_gradient[i][labels], own[0], rtol=rtol, atol=atol)
        np.testing.assert_allclose(candidate_gradient[i][there], own[1], rtol=rtol, atol=atol)
        np.testing.assert_array_equal(true_gradient[i][~labels], 0)
        np.testing.assert_array_equal(candidate_gradient[i][~there], 0)
        z_expected += own[2]
    np.testing.assert_allclose(z_gradient, z_expected, rtol=rtol, atol=atol)


# Against the oracle


@pytest.mark.each_of("name", str)
@pytest.mark.parametrize(("name", "case"), product(list(LOSSES), list(CASES)))
def test_value_and_gradient_equal_the_oracle(name, case):
    rows, candidates = CASES[case]
    for seed in range(3):
        assert_equals_oracle(name, random_case(np.random.default_rng(seed), rows, candidates))


@pytest.mark.each_of("name", str)
@every_loss
def test_random_shapes(name):
    rng = np.random.default_rng(5)
    for _ in range(10):
        count, width = rng.integers(1, 6, 2)
        rows = [rng.permutation(CLASSES)[: rng.integers(1, 5)] for _ in range(count)]
        shape = (width,) if rng.random() < 0.5 else (count, width)
        assert_equals_oracle(name, random_case(rng, rows, rng.integers(-1, CLASSES, shape)))


@every_loss
def test_large_logits_stay_finite_and_right(name):
    rng = np.random.default_rng(1)
    for rows, candidates in CASES.values():
        statistics = random_case(rng, rows, candidates, scale=1e4)
        values, gradients = value_and_gradients(make(name), statistics)
        expected = [oracle_of(name)(example) for example in examples_of(statistics)[0]]
        np.testing.assert_allclose(values, expected, rtol=1e-5, atol=1e-2)
        assert all(np.isfinite(gradient).all() for gradient in gradients)


@every_loss
def test_graph_equals_eager_with_unknown_shapes(name):
    statistics = random_case(np.random.default_rng(0), *CASES["several labels, own"])
    loss = make(name)

    @tf.function(
        input_signature=[
            tf.TensorSpec([None, None], value.dtype)
            for value in (statistics.labels.ids, *statistics[1:-4])
        ]
    )
    def run(ids, *fields):
        return loss.from_statistics(
            type(statistics)(Labels(ids), *fields, statistics.log_partition, CLASSES)
        )

    values = run(statistics.labels.ids, *statistics[1:-4])
    np.testing.assert_allclose(values, loss.from_statistics(statistics), rtol=1e-6)


@every_loss
def test_an_example_without_labels_is_finite(name):
    statistics = random_case(np.random.default_rng(0), [[1, 3], []], [4, 3, -1])
    values, gradients = value_and_gradients(make(name), statistics)
    assert np.isfinite(values).all()
    assert all(np.isfinite(gradient).all() for gradient in gradients)


@every_loss
def test_it_says_that_it_adds_up_over_workers(name):
    """Without it a head with several workers raises an error: tests/distribute has the values."""
    assert vars(LOSSES[name][0])["sums_over_workers"] is True


# Limits


def all_classes(rng, rows):
    logits = rng.normal(size=(len(rows), CLASSES))
    return logits, statistics_of(logits, labels_of(rows), np.arange(CLASSES), np.zeros(CLASSES))


@pytest.mark.parametrize("name", ["complementary_sum", "sampled_softmax", "active_set"])
@pytest.mark.parametrize("rows", [[[1], [4]], [[1, 2], [7, 0, 11], [5]]])
def test_with_all_classes_it_is_the_exact_softmax(name, rows):
    logits, statistics = all_classes(np.random.default_rng(2), rows)
    values, (true_gradient, candidate_gradient, _) = value_and_gradients(make(name), statistics)
    np.testing.assert_allclose(
        values, softmax.cross_entropy(logits, np.eye(CLASSES), None, rows), rtol=1e-5
    )
    probabilities = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    for i, row in enumerate(rows):
        gradient = candidate_gradient[i].copy()
        gradient[list(row)] += true_gradient[i][statistics.labels.ids[i].numpy() >= 0]
        expected = probabilities[i].copy()
        expected[list(row)] -= 1 / len(row)
        np.testing.assert_allclose(gradient, expected, atol=1e-6)


def test_with_all_classes_sampled_logistic_is_one_against_all():
    rows = [[1, 2], [7, 0, 11], [5]]
    logits, statistics = all_classes(np.random.default_rng(2), rows)
    targets = np.zeros(logits.shape)
    for target, row in zip(targets, rows, strict=True):
        target[row] = 1
    expected = tf.nn.sigmoid_cross_entropy_with_logits(targets, logits).numpy().sum(axis=1)
    np.testing.assert_allclose(
        losses.SampledLogistic().from_statistics(statistics), expected, rtol=1e-5
    )


@pytest.mark.parametrize("calibration", [0.0, 0.6, 1.0])
def test_with_all_classes_gbce_is_one_against_all(calibration):
    logits, statistics = all_classes(np.random.default_rng(2), [[7], [0], [5]])
    targets = np.eye(CLASSES)[[7, 0, 5]]
    expected = tf.nn.sigmoid_cross_entropy_with_logits(targets, logits).numpy().sum(axis=1)
    loss = losses.GeneralizedBCE(calibration)
    np.testing.assert_allclose(loss.from_statistics(statistics), expected, rtol=1e-5)


@pytest.mark.parametrize("calibration", [1.0, 0.0])
def test_calibrated_gbce_learns_the_probability_of_the_label(calibration):
    """Where sigmoid(o) = p, the mean gradient over all labels and sets of 4 negatives is 0."""
    p = np.random.default_rng(0).dirichlet(np.ones(CLASSES))
    draws = [
        (label, negatives)
        for label in range(CLASSES)
        for negatives in itertools.combinations(sorted({*range(CLASSES)} - {label}), 4)
    ]
    labels, ids = (np.array(part) for part in zip(*draws, strict=True))
    logits = np.tile(np.log(p) - np.log1p(-p), (len(draws), 1))
    statistics = statistics_of(logits, labels[:, None], ids, np.zeros(CLASSES))
    of_example = -gammas(losses.GeneralizedBCE(calibration), statistics)
    mean = (p[labels, None] * of_example).sum(axis=0) / (len(draws) / CLASSES)
    rate = 4 / (CLASSES - 1)
    beta = 1 - calibration * (1 - rate)
    np.testing.assert_allclose(mean, (rate - beta) * p * (1 - p), atol=1e-6)


def test_ranking_is_the_complementary_sum_of_one_uniform_negative():
    rng = np.random.default_rng(0)
    logits, log_expected = rng.normal(size=(3, CLASSES)), np.full(CLASSES, -np.log(CLASSES - 1))
    statistics = statistics_of(logits, labels_of([[1], [2], [3]]), np.array([7]), log_expected)
    np.testing.assert_allclose(
        losses.Ranking().from_statistics(statistics),
        losses.ComplementarySum().from_statistics(statistics),
        rtol=1e-6,
    )


# TensorFlow's own losses


def tensorflow_case(unique):
    rng = np.random.default_rng(3)
    weights = tf.Variable(rng.normal(size=(CLASSES, 4)), dtype=tf.float32)
    biases = tf.Variable(rng.normal(size=CLASSES), dtype=tf.float32)
    hidden = tf.constant(rng.normal(size=(9, 4)), tf.float32)
    if unique:
        labels = tf.constant(rng.integers(0, CLASSES, (9, 1)))
        triple = tf.random.log_uniform_candidate_sampler(labels, 1, 7, True, CLASSES, seed=2)
        return weights, biases, hidden, labels, triple
    # Repeated classes are not hits here: TensorFlow removes only one of two equal hits.
    ids = tf.constant([3, 0, 7, 7, 11, 5, 3], tf.int64)
    labels = tf.constant([[0], [11], [5], [1], [2], [4], [6], [8], [0]], tf.int64)
    expected = tf.constant(rng.uniform(0.1, 2, CLASSES), tf.float32)
    return (
        weights,
        biases,
        hidden,
        labels,
        (ids, tf.gather(expected, labels), tf.gather(expected, ids)),
    )


@pytest.mark.parametrize("unique", [True, False])
@pytest.mark.parametrize(
    ("function", "make_loss", "remove_accidental_hits"),
    [
        (tf.nn.sampled_softmax_loss, losses.SampledSoftmax, True),
        (tf.nn.nce_loss, losses.NoiseContrastive, False),
        (
            tf.nn.nce_loss,
            functools.partial(losses.NoiseContrastive, remove_accidental_hits=True),
            True,
        ),
    ],
    ids=["sampled_softmax", "nce", "nce_without_hits"],
)
def test_equals_tensorflows_own(function, make_loss, remove_accidental_hits, unique):
    weights, biases, hidden, labels, triple = tensorflow_case(unique)
    ids, true_expected, sampled_expected = triple

    def ours():
        logits = tf.matmul(hidden, tf.convert_to_tensor(weights), transpose_b=True) + biases
        gathered = tf.gather(logits, ids, axis=1)
        statistics = statistics_of(
            np.zeros((9, CLASSES)), labels.numpy(), ids.numpy(), np.zeros(CLASSES)
        )._replace(
            true_logits=tf.gather(logits, labels, batch_dims=1),
            candidate_logits=gathered,
            true_log_expected=tf.math.log(true_expected),
            candidate_log_expected=tf.math.log(sampled_expected),
        )
        return make_loss().from_statistics(statistics)

    def theirs():
        return function(
            tf.convert_to_tensor(weights),
            tf.convert_to_tensor(biases),
            labels,
            hidden,
            7,
            CLASSES,
            sampled_values=triple,
            remove_accidental_hits=remove_accidental_hits,
        )

    results = []
    for side in (ours, theirs):
        with tf.GradientTape() as tape:
            values = side()
            total = tf.reduce_sum(values)
        gradients = [tf.convert_to_tensor(g) for g in tape.gradient(total, [weights, biases])]
        results.append([values, *gradients])
    for mine, tensorflows in zip(*results, strict=True):
        np.testing.assert_allclose(mine, tensorflows, rtol=1e-4, atol=1e-5)


# What the paper says about gamma, the derivative of the log likelihood with respect to a logit


def gammas(loss, statistics):
    """-dL/do of each class, `[N, C]`, for one label per example."""
    _, (true_gradient, candidate_gradient, _) = value_and_gradients(loss, statistics)
    count, width = candidate_gradient.shape
    total = np.zeros((count, CLASSES))
    np.add.at(total, (np.arange(count), statistics.labels.ids[:, 0].numpy()), true_gradient[:, 0])
    ids = np.broadcast_to(statistics.candidate_ids, (count, width))
    np.add.at(total, (np.arange(count)[:, None], np.maximum(ids, 0)), candidate_gradient)
    return -total


@pytest.mark.parametrize(
    "name",
    ["complementary_sum", "ranking", "negative_mean", "sampled_softmax", "active_set"],
)
@pytest.mark.parametrize("scale", [1.0, 10.0, 1000.0])
def test_gamma_stays_between_minus_one_and_one(name, scale):
    rng = np.random.default_rng(0)
    rows = [[label] for label in rng.integers(0, CLASSES, 50)]
    statistics = random_case(rng, rows, rng.integers(-1, CLASSES, (50, 9)), scale)
    found = gammas(make(name), statistics)
    assert np.abs(found).max() <= 1 + 1e-6
    assert np.abs(found).max() > 0.5  # the bound is about something
    labels = statistics.labels.ids[:, 0].numpy()
    assert found[np.arange(50), labels].min() >= 0  # like the exact value, 1 - p(label)
    found[np.arange(50), labels] = 0
    assert found.max() <= 1e-6  # the others, too, have the exact one's sign


def test_gamma_of_importance_sampling_leaves_the_bounds():
    logits = np.zeros((1, CLASSES))
    logits[0, 3] = 10.0  # p(label) = 0.9995: gamma should be 0.0005
    statistics = statistics_of(
        logits, labels_of([[3]]), np.array([0, 1, 2]), np.log(np.full(CLASSES, 0.25))
    )
    value = losses.ImportanceSampling().from_statistics(statistics).numpy()[0]
    np.testing.assert_allclose(value, np.log(12) - 10, rtol=1e-5)  # a negative loss
    assert 1 - np.exp(-value) < -1000  # eq. 14: 1 - e^{o_y} / Z
    # The derivative of the loss itself never falls below -1, and never gets better than that.
    np.testing.assert_allclose(gammas(losses.ImportanceSampling(), statistics)[0, 3], 1)
    assert gammas(losses.ComplementarySum(), statistics)[0, 3] < 0.001


# As Keras losses


@every_loss
def test_exact_is_the_softmax_cross_entropy(name):
    rng = np.random.default_rng(0)
    logits, rows = rng.normal(size=(3, CLASSES)), [[1], [2, 5], [11, 0, 4]]
    ids = labels_of(rows)
    exact = ExactStatistics(
        Labels(tf.constant(ids)),
        tf.constant(np.take_along_axis(logits, np.maximum(ids, 0), 1), tf.float32),
        tf.constant(np.log(np.exp(logits).sum(axis=1)), tf.float32),
        tf.zeros(ids.shape, tf.int64),
    )
    np.testing.assert_allclose(
        make(name).exact(exact),
        softmax.cross_entropy(logits, np.eye(CLASSES), None, rows),
        rtol=1e-5,
    )


@every_loss
def test_config_round_trip(name):
    loss = make(name, reduction="sum", name="mine")
    copy = keras.losses.deserialize(keras.losses.serialize(loss))
    assert type(copy) is type(loss)
    assert copy.get_config() == loss.get_config()
    statistics = random_case(np.random.default_rng(0), *CASES["one label, hits"])
    np.testing.assert_array_equal(
        copy.from_statistics(statistics), loss.from_statistics(statistics)
    )


@pytest.mark.parametrize(
    ("make_loss", "message"),
    [
        (lambda: losses.Ranking(margin="log(C)"), "margin must be a finite number; got .*allowed"),
        (lambda: losses.Ranking(margin=float("nan")), "finite number; got nan"),
        (lambda: losses.Ranking(margin=True), "finite number; got True"),
        (lambda: losses.Ranking(kind="square"), "kind must be one of .* got 'square'"),
        (lambda: losses.NoiseContrastive("taught"), "log_partition must be .* got 'taught'"),
        (lambda: losses.NoiseContrastive(float("inf")), "log_partition must be .* got inf"),
        (lambda: losses.GeneralizedBCE(1.5), r"calibration must be a .* got 1.5"),
        (lambda: losses.GeneralizedBCE(None), "calibration must be a .* got None"),
        (lambda: losses.NegativeSampling("max"), "negatives must be one of .* got 'max'"),
    ],
)
def test_arguments_are_checked(make_loss, message):
    with pytest.raises(ValueError, match=message):
        make_loss()
