# SPDX-License-Identifier: Apache-2.0
"""A self-updating head takes the step that the naive layer takes, once a step, and never else."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from heads.self_updating_dense import SelfUpdatingDense

import tfx_largeout as tlo

CLASSES, WIDTH, BATCH, STEPS = 11, 3, 8, 6


def model_with(head, optimizer, **arguments):
    keras.utils.set_random_seed(3)
    model = keras.Sequential([keras.Input((WIDTH,)), keras.layers.Dense(WIDTH), head])
    model.compile(optimizer, tlo.losses.SoftmaxCrossentropy(), **arguments)
    return model


def data():
    rng = np.random.default_rng(0)
    return rng.normal(size=(STEPS * BATCH - 3, WIDTH)), rng.integers(0, CLASSES, STEPS * BATCH - 3)


class CountingHead(SelfUpdatingDense):
    """Counts its updates in a weight."""

    def build(self, input_shape):
        super().build(input_shape)
        self.updates = self.add_weight(name="updates", shape=(), initializer="zeros")

    def backward(self, hidden, labels, residuals, gradients, update):
        if update:
            self.updates.assign_add(1.0)
        return super().backward(hidden, labels, residuals, gradients, update)


@pytest.mark.parametrize(
    "arguments",
    [{}, {"run_eagerly": True}, {"steps_per_execution": 4}],
    ids=["graph", "eager", "steps_per_execution"],
)
def test_one_update_a_step_and_none_elsewhere(arguments):
    head = CountingHead(CLASSES)
    model = model_with(head, "sgd", **arguments)
    model.fit(*data(), batch_size=BATCH, epochs=2, verbose=0)
    assert float(head.updates) == 2 * STEPS
    model.evaluate(*data(), batch_size=BATCH, verbose=0)
    model.predict(data()[0], verbose=0)
    assert float(head.updates) == 2 * STEPS
    head.trainable = False
    model.compile("sgd", tlo.losses.SoftmaxCrossentropy(), **arguments)
    model.fit(*data(), batch_size=BATCH, verbose=0)
    assert float(head.updates) == 2 * STEPS


def test_the_weights_are_those_of_the_naive_layer():
    weights = []
    for head_class in (SelfUpdatingDense, tlo.heads.DenseHead):
        keras.utils.set_random_seed(3)  # before the head: it draws the seed of its initializer
        head = head_class(CLASSES)
        model = model_with(head, keras.optimizers.SGD(0.5))
        model.fit(*data(), batch_size=BATCH, epochs=3, shuffle=False, verbose=0)
        weights.append([head.kernel.numpy(), head.bias.numpy(), model.layers[0].kernel.numpy()])
    for own, naive in zip(*weights, strict=True):
        np.testing.assert_allclose(own, naive, rtol=1e-5, atol=1e-6)
