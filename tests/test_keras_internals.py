# SPDX-License-Identifier: Apache-2.0
"""The private names of Keras say what they are taken for; a test names the one that is gone."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfx_largeout.keras_internals import (
    applying_optimizer,
    asks_for_shapes,
    batches_applied,
    calling_model,
    in_train_step,
)

SEEN = {}


class Look(keras.layers.Dense):
    """Notes what is known while it is called, and while an optimizer steps with its kernel."""

    def __init__(self):
        super().__init__(1, kernel_constraint=LookAtOptimizer())

    def call(self, inputs):
        SEEN["model"] = calling_model(self)
        SEEN["in train step"] = in_train_step()
        return super().call(inputs)


class LookAtOptimizer(keras.constraints.Constraint):
    def __call__(self, kernel):
        SEEN["optimizer"] = applying_optimizer()
        return kernel


def fitted(optimizer, **arguments):
    layer = Look()
    model = keras.Sequential([keras.Input((2,)), keras.Sequential([layer])])
    model.compile(optimizer, "mse", jit_compile=False, **arguments)
    SEEN.clear()
    model.fit(np.ones((6, 2)), np.ones(6), batch_size=1, verbose=0)
    return model, layer


@pytest.mark.parametrize("steps", [1, 3])
def test_a_layer_finds_the_model_that_calls_it_and_its_training_step(steps):
    model, layer = fitted("sgd", steps_per_execution=steps)
    assert SEEN["model"] is model, "Layer._get_call_context().entry_layer"
    assert SEEN["in train step"], "the function of a step is not called one_step_on_data"
    model.predict(np.ones((2, 2)), verbose=0)
    assert not SEEN["in train step"]
    layer(tf.ones((1, 2)))
    assert SEEN["model"] is None
    assert applying_optimizer() is None
    assert not in_train_step()


def test_a_layer_knows_when_keras_asks_for_shapes():
    seen = []

    class Plain(keras.layers.Layer):
        def call(self, inputs):
            seen.append(asks_for_shapes())
            return inputs

    model = keras.Sequential([keras.Input((2,)), Plain()])
    assert all(seen) and seen, "in_symbolic_scope: it is another one when a model is made"
    seen.clear()
    model(tf.ones((1, 2)))
    assert seen == [False]


def test_a_constraint_finds_the_optimizer_that_steps():
    inner = keras.optimizers.SGD(0.1)
    fitted(keras.optimizers.LossScaleOptimizer(inner))
    assert SEEN["optimizer"] is inner, "name_scope_stack: an optimizer's apply has no scope"


def test_batches_of_an_optimizer_that_accumulates():
    model, _ = fitted(keras.optimizers.SGD(0.1, gradient_accumulation_steps=4))
    assert int(batches_applied(model.optimizer)) == 6
    assert int(model.optimizer.iterations) == 1
