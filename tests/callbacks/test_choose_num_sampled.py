# SPDX-License-Identifier: Apache-2.0
"""choose_num_sampled: the smallest S within a tolerance, on other examples too; nothing changed."""

from __future__ import annotations

import logging

import keras
import numpy as np
import pytest
import tensorflow as tf
from variants import cases_of

import tfx_largeout as tlo
from tfx_largeout import choose_num_sampled, losses, samplers
from tfx_largeout.callbacks.choose_num_sampled import _error
from tfx_largeout.callbacks.model_state import ModelState
from tfx_largeout.optimizers import RowAdam

CLASSES, WIDTH, EXAMPLES = 400, 6, 256
RNG = np.random.default_rng(0)
X = RNG.normal(size=(2 * EXAMPLES, WIDTH)).astype("float32")
Y = RNG.integers(0, CLASSES, 2 * EXAMPLES)
SEEN, HELD_OUT = slice(0, EXAMPLES), slice(EXAMPLES, None)
COUNTS = 1000 / (1 + np.arange(CLASSES))
SAMPLERS = {
    "uniform": lambda: samplers.Uniform(5),
    "log_uniform": lambda: samplers.LogUniform(5),
    "unigram": lambda: samplers.Unigram(COUNTS, 5, unique=False),
    "own": lambda: samplers.Uniform(5, per_example=True),
    "bernoulli": lambda: samplers.Bernoulli(COUNTS, 5),
    "midx": lambda: samplers.MIDX(5, num_words=4),
    "exact": lambda: samplers.ExactSoftmaxSampler(5),
}


def model_with(head, loss=None):
    model = keras.Sequential([keras.Input((WIDTH,)), keras.layers.Dense(5, "tanh"), head])
    model.compile("sgd", loss=loss or losses.ComplementarySum())
    return model


def sampled(kind="uniform", **options):
    keras.utils.set_random_seed(2)
    head = tlo.heads.SampledHead(CLASSES, SAMPLERS[kind](), RowAdam(0.01), seed=1, **options)
    model = model_with(head)
    model.run_eagerly = True
    model.fit(X, Y, batch_size=128, verbose=0)
    return model


def error_of(model, num_sampled, examples, draws=20):
    """Returns the error defined in the docstring, by automatic differentiation of all logits."""
    trunk, head = model.layers
    hidden, labels = trunk(X[examples]), Y[examples]
    with tf.GradientTape() as tape:
        tape.watch(hidden)
        logits = tf.matmul(hidden, head.kernel.value, transpose_b=True) + head.bias.value
        values = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
    exact = tape.gradient(values, hidden)
    head.set_num_sampled(num_sampled)
    squares = []
    for draw in range(100, 100 + draws):
        with head.without_update(draw), tf.GradientTape() as tape:
            tape.watch(hidden)
            values = losses.ComplementarySum(reduction="sum")(labels, head(hidden, training=True))
        squares.append(tf.reduce_sum((tape.gradient(values, hidden) - exact) ** 2))
    return float(tf.sqrt(tf.reduce_mean(squares) / tf.reduce_sum(exact**2)))


@cases_of("kind", list(SAMPLERS))
def test_the_tolerance_is_met_on_held_out_examples_and_not_with_less(kind):
    model = sampled(kind)
    tolerance = 0.25
    num_sampled, found = choose_num_sampled(model, X[SEEN], Y[SEEN], tolerance)
    assert 10 < num_sampled < CLASSES
    *_, smaller, last = found["errors"]
    assert last == num_sampled == found["num_sampled"]
    assert (found["error"], found["standard_error"]) == found["errors"][num_sampled]
    assert found["error"] + 2 * found["standard_error"] <= tolerance
    error, standard_error = found["errors"][smaller]
    assert error > found["error"] and error + 2 * standard_error > tolerance
    assert error_of(model, num_sampled, HELD_OUT) <= tolerance


def test_the_error_is_that_of_the_docstring():
    model = sampled("own")
    _, found = choose_num_sampled(model, X, Y, 9.0, sizes=[20], draws=20)
    expected = error_of(model, 20, slice(None))
    assert found["error"] == pytest.approx(expected, abs=4 * found["standard_error"])


def test_all_classes_are_exact():
    _, found = choose_num_sampled(sampled(), X[SEEN], Y[SEEN], 1e-4, sizes=[CLASSES, 200])
    assert list(found["errors"]) == [200, CLASSES]
    assert found["errors"][200].error > 1e-2 and found["error"] < 1e-5


def test_the_standard_error_is_the_deviation_of_the_error():
    rng = np.random.default_rng(1)
    errors, said = [], []
    for _ in range(1000):
        exact = rng.normal(size=(60, 4)) * rng.uniform(0.5, 1.5, size=(60, 1))
        shared = 0.3 * rng.normal(size=(6, 1, 4))  # by all examples of a draw
        drawn = exact + shared + rng.normal(size=(6, 60, 4)) * rng.uniform(0, 1, size=(60, 1))
        found = _error(tf.constant(drawn, tf.float32), tf.constant(exact, tf.float32))
        errors.append(found.error)
        said.append(found.standard_error)
    deviation = np.std(errors)
    assert 0.95 * deviation < np.sqrt(np.mean(np.square(said))) < 1.3 * deviation


def test_without_any_gradient_there_is_no_error():
    zeros = tf.zeros([3, 4, 2])
    assert _error(zeros, zeros[0]) == (0, 0)
    assert _error(zeros + 1, zeros[0]).error == np.inf


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["log_uniform", "midx"])
def test_it_is_repeatable_and_changes_nothing(kind, caplog):
    model = sampled(kind)
    sampler, config = model.layers[-1].sampler, model.get_config()

    def state():
        return [read().copy() for _, read in ModelState(model).arrays()]

    before, numbers = state(), np.random.get_state()[1].copy()
    keras.utils.set_random_seed(4)
    drawn = tf.random.uniform([]).numpy()
    keras.utils.set_random_seed(4)
    numbers = np.random.get_state()[1].copy()
    with caplog.at_level(logging.INFO, "tfx_largeout"):
        chosen = choose_num_sampled(model, X[SEEN], Y[SEEN], 0.3)
    assert f"'num_sampled': {chosen[0]}" in caplog.text
    assert tf.random.uniform([]).numpy() == drawn
    np.testing.assert_array_equal(np.random.get_state()[1], numbers)
    assert choose_num_sampled(model, X[SEEN], Y[SEEN], 0.3) == chosen
    assert model.layers[-1].sampler is sampler and model.get_config() == config
    for weight, value in zip(state(), before, strict=True):
        np.testing.assert_array_equal(weight, value)


def test_a_tied_head_has_its_own_sampler_back():
    embedding = tlo.layers.RowEmbedding(CLASSES, 5)
    inputs = keras.Input([2], dtype="int64")
    hidden = keras.layers.GlobalAveragePooling1D()(embedding(inputs))
    head = tlo.heads.TiedSampledHead(embedding, samplers.Uniform(7), seed=1)
    model = keras.Model(inputs, head(hidden))
    model.compile(RowAdam(0.1), loss=losses.ComplementarySum(), run_eagerly=True)
    words = RNG.integers(0, CLASSES, (EXAMPLES, 2))
    model.fit(words, Y[SEEN], verbose=0, batch_size=64)
    before = model.get_weights()
    num_sampled, _ = choose_num_sampled(model, words, Y[SEEN], 0.3)
    assert 10 <= num_sampled < CLASSES and head.sampler.num_sampled == 7
    for weight, value in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(weight, value)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"tolerance": 0}, "tolerance must be a finite number above 0; got 0"),
        ({"draws": 1}, "draws must be an integer of at least 2; got 1"),
        ({"sizes": []}, r"sizes must be a sequence of integers; got \[\]"),
        ({"sizes": 7}, "sizes must be a sequence of integers; got 7"),
        ({"sizes": [10, 2.5]}, "each of sizes must be an integer of at least 1; got 2.5"),
        ({"sizes": [401]}, "each of sizes must be at most num_classes=400; got 401"),
        (
            {"sizes": [5, 6]},
            "tolerance must be one that some S meets by two standard errors; got 0.01, and S = 6 "
            "has an error of",
        ),
    ],
)
def test_arguments_are_checked(arguments, message):
    model = sampled()
    sampler = model.layers[-1].sampler
    given = {"x": X[SEEN], "y": Y[SEEN], "tolerance": 0.01, **arguments}
    with pytest.raises(ValueError, match=message):
        choose_num_sampled(model, **given)
    assert model.layers[-1].sampler is sampler


def with_index():
    index = tlo.indexes.HashIndex(tlo.indexes.SimHash(), num_tables=2)
    sampler = samplers.LSHEmbedding(8)
    return tlo.heads.SampledHead(CLASSES, sampler, RowAdam(0.01), seed=1, index=index)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: model_with(keras.layers.Dense(CLASSES), "mse"),
            "choose_num_sampled needs a model with a HeadLoss; got 'mse'",
        ),
        (
            lambda: model_with(tlo.heads.DenseHead(CLASSES), losses.SoftmaxCrossentropy()),
            "choose_num_sampled needs a model whose last layer is a SampledHead; got DenseHead",
        ),
        (
            lambda: model_with(with_index()),
            "sampler must be one with num_sampled, such as LogUniform, to draw another number of "
            "candidates; got LSHEmbedding",
        ),
    ],
)
def test_other_models_are_refused(make, message):
    with pytest.raises(TypeError, match=message):
        choose_num_sampled(make(), X, Y, 0.1)


def test_an_example_without_labels_changes_nothing():
    model, kept = sampled("own"), np.arange(len(X)) != 5
    labels = np.where(kept, Y, -1)
    chosen = [choose_num_sampled(model, *data, 9.0, [20]) for data in ((X, labels), (X, Y))]
    assert chosen[0][1]["error"] == pytest.approx(chosen[1][1]["error"], rel=0.05)
