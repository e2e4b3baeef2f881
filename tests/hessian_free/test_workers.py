# SPDX-License-Identifier: Apache-2.0
"""Workers: a group gives the sums of one, and batches don't matter."""

from __future__ import annotations

import math

import keras
import numpy as np
import pytest
import tensorflow as tf
from hessian_free.models import (
    WIDTH,
    classes_data,
    curvature_of,
    dense_model,
    sparse_softmax,
)
from keras import layers, losses
from oracles import hessian_free as oracle
from variants import product, thorough

from tfx_largeout.hessian_free.examples import Examples
from tfx_largeout.hessian_free.flat_parameters import FlatParameters, WeightPenalty
from tfx_largeout.hessian_free.worker import LocalWorker, WorkerGroup

X, Y = classes_data(40)
WEIGHTS = np.random.default_rng(9).random(40)


def one_and_group(reduction="sum_over_batch_size", batch_size=1024):
    loss = losses.SparseCategoricalCrossentropy(from_logits=True, reduction=reduction)
    curvature, _ = curvature_of(dense_model(loss), X, Y, WEIGHTS)
    examples = Examples(X, Y, WEIGHTS)
    shards = [examples.part(np.arange(a, b)) for a, b in ((0, 7), (7, 30), (30, 40))]
    one = LocalWorker(curvature, examples, batch_size)
    return curvature, one, WorkerGroup([LocalWorker(curvature, part) for part in shards])


SAMPLES = {
    "all": np.arange(40),
    "a few": np.array([0, 6, 7, 8, 29, 39]),
    "one shard": np.array([9, 20, 28]),
    "last": np.array([39]),
}


@pytest.mark.parametrize(
    ("sample", "reduction"),
    product(list(SAMPLES), ["sum_over_batch_size", "mean_with_sample_weight"]),
)
def test_a_group_gives_the_sums_of_one(sample, reduction):
    curvature, one, group = one_and_group(reduction)
    numbers = SAMPLES[sample]
    assert one.num_examples == group.num_examples == 40
    np.testing.assert_allclose(group.loss(numbers), one.loss(numbers), rtol=1e-6)
    vector = tf.random.normal([curvature.parameters.size])
    signs = np.where(np.arange(len(numbers)) % 3, 1.0, -1.0)
    for worker in (one, group):
        worker.hold(numbers)
    for a, b in (
        (group.gradient(numbers), one.gradient(numbers)),
        (group.product(vector), one.product(vector)),
        (group.squared_gradients(signs, 1), one.squared_gradients(signs, 1)),
    ):
        np.testing.assert_allclose(a.vector, b.vector, rtol=1e-4, atol=1e-5)
        assert (a.loss, a.weight) == pytest.approx((b.loss, b.weight), rel=1e-6)
    a, b = group.gradient(numbers, 1), one.gradient(numbers, 1)
    assert (a.squares, a.micro_batches) == pytest.approx((b.squares, b.micro_batches), rel=1e-5)


@pytest.mark.parametrize("batch_size", [3, *thorough(1, 39)])
def test_batches_change_only_the_rounding(batch_size):
    curvature, large, _ = one_and_group()
    small = LocalWorker(curvature, Examples(X, Y, WEIGHTS), batch_size)
    vector = tf.random.normal([curvature.parameters.size])
    numbers = np.arange(1, 40)
    for worker in (small, large):
        worker.hold(numbers)
    np.testing.assert_allclose(small.loss(numbers), large.loss(numbers), rtol=1e-6)
    np.testing.assert_allclose(
        small.product(vector).vector, large.product(vector).vector, rtol=1e-4, atol=1e-5
    )
    np.testing.assert_allclose(
        small.gradient(numbers).vector, large.gradient(numbers).vector, rtol=1e-4, atol=1e-5
    )
    assert curvature.traces == 3


def test_squared_gradients_are_exact_example_by_example_and_unbiased_in_batches():
    curvature, _ = curvature_of(dense_model(sparse_softmax()), X, Y, WEIGHTS)
    worker = LocalWorker(curvature, Examples(X, Y, WEIGHTS))
    worker.hold(np.arange(40))
    single = oracle.gradients("softmax", curvature.model.get_weights(), X, Y)
    expected = ((WEIGHTS[:, None] * single) ** 2).sum(axis=0)
    rng = np.random.default_rng(0)
    exact = worker.squared_gradients(rng.choice([-1.0, 1.0], 40), 1).vector
    np.testing.assert_allclose(exact, expected, rtol=1e-4, atol=1e-7)
    drawn = np.stack(
        [worker.squared_gradients(rng.choice([-1.0, 1.0], 40), 8).vector for _ in range(200)]
    )
    errors = drawn.std(axis=0) / 200**0.5
    assert np.all(np.abs(drawn.mean(axis=0) - expected) <= 4.5 * errors + 1e-6)


def test_parameters_reach_all_workers():
    curvature, _, group = one_and_group()
    vector = tf.random.normal([curvature.parameters.size])
    group.set_parameters(vector)
    np.testing.assert_array_equal(curvature.parameters.read(), vector)


def test_penalty_is_that_of_keras_and_its_curvature_the_hessian():
    model = keras.Sequential(
        [
            keras.Input((WIDTH,)),
            layers.Dense(3, "tanh", kernel_regularizer=keras.regularizers.L1L2(0.01, 0.1)),
            layers.Dense(2, bias_regularizer=keras.regularizers.L2(0.3)),
        ]
    )
    model.compile(loss="mse")
    model.layers[1].bias.assign([1.0, -2.0])
    penalty = WeightPenalty(model.trainable_variables)
    kernel = model.layers[0].kernel.numpy()
    expected = 0.01 * np.abs(kernel).sum() + 0.1 * (kernel**2).sum() + 0.3 * 5
    assert len(penalty) == 2
    assert penalty.value() == pytest.approx(expected, rel=1e-5)
    parameters = FlatParameters(model.trainable_variables)
    zeros = np.zeros(parameters.size, "float32")
    gradient = parameters.split(penalty.add_gradient(zeros))
    np.testing.assert_allclose(gradient[0], 0.01 * np.sign(kernel) + 0.2 * kernel, rtol=1e-5)
    np.testing.assert_allclose(gradient[3], [0.6, -1.2], rtol=1e-5)
    vector = tf.random.normal([parameters.size])
    product = parameters.split(penalty.add_product(zeros, vector))
    np.testing.assert_allclose(product[0], 0.2 * parameters.split(vector)[0], rtol=1e-5)
    np.testing.assert_allclose(product[3], 0.6 * parameters.split(vector)[3], rtol=1e-5)
    np.testing.assert_array_equal(product[1], zeros[:3])


def test_without_regularizers_there_is_no_penalty():
    penalty = WeightPenalty(dense_model("mse").trainable_variables)
    vector = tf.ones([38])
    assert (len(penalty), penalty.value()) == (0, 0)
    assert penalty.add_gradient(vector) is vector
    assert penalty.add_product(vector, vector) is vector


def test_examples_come_from_arrays_and_datasets_alike():
    x = {"a": X, "b": [np.arange(40), np.arange(80).reshape(40, 2)]}
    x["b"] = tuple(x["b"])
    arrays = Examples.of(x, Y, WEIGHTS)
    dataset = Examples.of(tf.data.Dataset.from_tensor_slices((x, Y, WEIGHTS)).batch(7))
    numbers = np.array([3, 12, 39])
    for a, b in zip(
        tf.nest.flatten(arrays.take(numbers)), tf.nest.flatten(dataset.take(numbers)), strict=True
    ):
        np.testing.assert_array_equal(a, b)
    assert arrays.spec == dataset.spec
    assert len(arrays.part(numbers)) == 3
    unweighted = Examples.of(tf.data.Dataset.from_tensor_slices((X, Y)).batch(40))
    np.testing.assert_array_equal(unweighted.take(numbers)[2], [1, 1, 1])


def dataset_of(*arrays):
    return tf.data.Dataset.from_tensor_slices(arrays if len(arrays) > 1 else arrays[0])


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((X, None), ValueError, "y must be given"),
        ((X[:0], Y[:0]), ValueError, "at least one example; got none"),
        ((X, Y[:5]), ValueError, "as many examples each; got 40, 5, 5"),
        ((X, Y, WEIGHTS[:3]), ValueError, "as many examples each; got 40, 40, 3"),
        ((X, Y, -WEIGHTS), ValueError, "sample_weight must be at least 0, .*; got -0"),
        ((X, Y, WEIGHTS * math.nan), ValueError, "sample_weight must be at least 0, .*; got nan"),
        ((X, 3), ValueError, "y must have the examples as its first dimension; got a scalar"),
        ((X, np.array(["a"] * 40)), TypeError, "y must be arrays of numbers; got dtype <U1"),
        ((tf.sparse.from_dense(X), Y), TypeError, "x must be dense arrays; got a SparseTensor"),
        ((tf.ragged.constant([[1], []]), Y), TypeError, "x must be dense arrays; got a Ragged"),
        ((dataset_of(X, Y), Y), ValueError, "must be None where x is a dataset"),
        ((dataset_of(X, Y).batch(4).repeat(),), ValueError, "finite; got an infinite one"),
        ((dataset_of(X, Y).take(0).batch(4),), ValueError, "got an empty dataset"),
        ((dataset_of(X).batch(4),), ValueError, r"must give \(x, y\) or \(x, y, sample_weight\)"),
    ],
)
def test_bad_data_is_refused(arguments, error, message):
    with pytest.raises(error, match=message):
        Examples.of(*arguments)


def test_batches_that_do_not_fit_together_are_refused():
    batches = tf.data.Dataset.range(1, 4).map(lambda n: (tf.zeros([2, n]), tf.zeros([2])))
    with pytest.raises(ValueError, match="batches must have examples of one shape; got"):
        Examples.of(batches)


def test_arguments_are_checked():
    curvature, _, _ = one_and_group()
    with pytest.raises(ValueError, match="workers must have at least one element; got none"):
        WorkerGroup([])
    with pytest.raises(ValueError, match="batch_size must be an integer of at least 1; got 0"):
        LocalWorker(curvature, Examples(X, Y), 0)
