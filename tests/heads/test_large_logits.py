# SPDX-License-Identifier: Apache-2.0
"""More than a gigabyte of kept logits gives one warning, with alternatives."""

from __future__ import annotations

import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf
from conformance.heads_table import HEADS, first_of_a_class
from variants import cases_of, thorough

import tfx_largeout as tlo
from tfx_largeout.heads import large_logits

C, D = 50, 8
MESSAGE = r"returns all logits: {} rows \(so far\) of C=50 classes .*tlo.top_k_model\(model, k\)"
every_class = cases_of("row", list(filter(first_of_a_class, HEADS)))


@pytest.fixture(autouse=True)
def at_most_a_hundred_rows(monkeypatch):
    monkeypatch.setattr(large_logits, "_MOST_BYTES", 100 * C * 4)


class Subclassed(keras.Model):
    def __init__(self, head):
        super().__init__()
        self.head = head

    def call(self, inputs):
        return self.head(inputs)


def functional(head):
    inputs = keras.Input([D])
    return keras.Model(inputs, head(inputs))


def x(rows):
    return np.ones([rows, D], "float32")


def quiet():
    return warnings.catch_warnings(action="error", category=RuntimeWarning)


@pytest.mark.parametrize("make", [functional, Subclassed])
@every_class
def test_predict_warns_once_by_what_it_has_returned(row, make):
    model = make(row.make_head(C))
    with quiet():
        model.predict(x(99), verbose=0)
        for _ in range(9):  # each releases the result of the one before
            model.predict(x(90), verbose=0)
    with pytest.warns(RuntimeWarning, match=MESSAGE.format(r"1\d\d")) as seen:
        model.predict(x(400), verbose=0)
        model.predict(x(400), verbose=0)
    assert len([w for w in seen if "returns all logits" in str(w.message)]) == 1


@pytest.mark.parametrize("run_eagerly", [False, *thorough(True)])
def test_a_generator_of_unknown_length(run_eagerly):
    model = functional(tlo.heads.DenseHead(C))
    model.compile(run_eagerly=run_eagerly)
    batches = ((x(30),) for _ in range(5))
    with pytest.warns(RuntimeWarning, match=MESSAGE.format("1[25]0")):
        assert model.predict(batches, verbose=0).shape == (150, C)


@pytest.mark.parametrize(
    "predict",
    [
        lambda model: model.predict_on_batch(x(200)),
        lambda model: model.predict(x(200), batch_size=200, verbose=0),
        lambda model: model(x(200)),
    ],
    ids=["predict_on_batch", "one_batch", "a_call"],
)
def test_one_batch_is_enough(predict):
    model = functional(tlo.heads.DenseHead(C))
    with quiet():
        model.predict_on_batch(x(100))  # just the limit
    with pytest.warns(RuntimeWarning, match=MESSAGE.format("200")):
        assert predict(model).shape == (200, C)


@every_class
def test_what_makes_no_logits_says_nothing(row):
    model = functional(row.make_head(C))
    model.compile(row.make_optimizer(), loss=row.make_loss(), metrics=["accuracy"])
    labels = np.zeros(200, int)
    batches = tf.data.Dataset.from_tensor_slices((x(200), labels)).batch(200, drop_remainder=True)
    with quiet():
        model.predict(x(3), verbose=0)
        model.fit(batches, epochs=2, verbose=0)
        model.evaluate(batches, verbose=0)
        best = tlo.top_k_model(model, 3)
        best.predict(x(200), batch_size=200, verbose=0)
        best.predict_on_batch(x(200))
