# SPDX-License-Identifier: Apache-2.0
"""Examples without labels, ignored classes and class weights, with every head."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from conformance.heads_table import HEADS, class_of, first_of_a_class
from conformance.test_heads import (
    CLASSES,
    WIDTH,
    compiled,
    exact_loss,
    examples,
    functional,
    head_of,
    hidden_of,
    kernel_of,
    trunk,
)
from variants import cases_of, each_once, thorough

import tfx_largeout as tlo

pytestmark = pytest.mark.each_of("row", class_of)

every_head = cases_of("row", HEADS)
CLASSES_OF_HEADS = list(filter(first_of_a_class, HEADS))
every_class = cases_of("row", CLASSES_OF_HEADS)

LABELLED, PADDED = 12, 20  # examples of a batch, those without labels last


def padded_batch(ignored=-1):
    x, labels = examples(count=PADDED)
    labels[LABELLED:] = ignored
    return x, labels


def new_model(row, **compile_arguments):
    """A model that has the same weights and draws whenever it is made."""
    keras.utils.set_random_seed(11)
    return compiled(functional(row), row, **compile_arguments)


def with_loss(row, **arguments):
    """The row's loss with further arguments."""
    loss = row.make_loss()
    return type(loss).from_config({**loss.get_config(), **arguments})


def train(model, x, labels, **arguments):
    keras.utils.set_random_seed(11)  # also the draws of TensorFlow's ops
    model.fit(x, labels, batch_size=len(x), epochs=2, shuffle=False, verbose=0, **arguments)


def weights_of(row, model):
    return [
        kernel_of(row, head_of(model)),
        keras.ops.convert_to_numpy(model.get_layer("trunk").kernel),
    ]


def assert_alike(row, one, other):
    for left, right in zip(weights_of(row, one), weights_of(row, other), strict=True):
        np.testing.assert_allclose(left, right, rtol=2e-4, atol=2e-5)


# Examples without labels


@pytest.mark.parametrize(("row", "ignored"), each_once(CLASSES_OF_HEADS, [-1, -100]))
def test_a_batch_with_padding_trains_as_the_batch_without_it(row, ignored):
    x, labels = padded_batch(ignored)
    padded, bare = (new_model(row, run_eagerly=True) for _ in range(2))
    if ignored != -1:
        padded.compile(
            row.make_optimizer(), loss=with_loss(row, ignore_class=ignored), run_eagerly=True
        )
    start = [weight.copy() for weight in weights_of(row, bare)]
    train(padded, x, labels)
    train(bare, x[:LABELLED], labels[:LABELLED])
    assert_alike(row, padded, bare)
    assert all(
        np.abs(a - b).max() > 1e-4 for a, b in zip(start, weights_of(row, bare), strict=True)
    )
    value = padded.evaluate(x, labels, batch_size=PADDED, verbose=0)
    expected = exact_loss(row, padded, x[:LABELLED], labels[:LABELLED])
    np.testing.assert_allclose(value, expected, rtol=1e-5)


@every_class
@pytest.mark.parametrize("run_eagerly", [True, *thorough(False)], ids=["eager", "graph"])
def test_a_batch_without_any_label_has_a_loss_of_zero_and_moves_nothing(row, run_eagerly):
    x, _ = padded_batch()
    model = new_model(row, run_eagerly=run_eagerly, metrics=[tlo.metrics.PrecisionAtK(1)])
    start = [weight.copy() for weight in weights_of(row, model)]
    labels = np.full([PADDED, 3], -1)
    history = model.fit(x, labels, batch_size=PADDED, verbose=0)
    assert history.history["loss"] == [0]
    assert model.evaluate(x, labels, batch_size=PADDED, verbose=0)[0] == 0
    for before, now in zip(start, weights_of(row, model), strict=True):
        np.testing.assert_allclose(now, before, rtol=1e-6, atol=1e-7)


def forms():
    ids = np.array([[3, 7, -1], [-1, -1, -1], [4, -1, -1], [-1, -1, -1], [-1, 9, 2]])
    ragged = tf.ragged.constant([[3, 7], [], [4], [], [9, 2]], dtype=tf.int64)
    one = np.array([3, -1, 4, -1, 9])
    yield "[B]", one, one
    yield "[B, 1]", one[:, np.newaxis], one
    yield "[B, K]", ids, ids
    yield "ragged", ragged, ids
    yield "sparse", ragged.to_sparse(), ids


@every_class
def test_every_form_of_labels_may_have_rows_without(row):
    x, _ = examples(count=5)
    model = new_model(row)
    model(x)
    for name, y, ids in forms():
        rows = [i for i, own in enumerate(ids) if np.max(own) >= 0]
        lists = [[c for c in np.atleast_1d(ids[i]) if c >= 0] for i in rows]
        weights = row.weights(head_of(model))
        expected = row.oracle(hidden_of(model, x[rows]), *weights, lists).mean()
        loss = row.make_loss()
        np.testing.assert_allclose(loss(y, model(x)), expected, rtol=1e-5, err_msg=name)
        assert np.isfinite(loss(y, model(x, training=True))), name


@every_class
@pytest.mark.parametrize("several", [False, True], ids=["[B, T]", "[B, T, K]"])
@pytest.mark.parametrize("run_eagerly", [True, *thorough(False)], ids=["eager", "graph"])
def test_padded_sequences_train_as_their_positions(row, several, run_eagerly):
    flat, labels = padded_batch()
    x, y = flat.reshape(4, 5, WIDTH), labels.reshape(4, 5)
    if several:
        y = np.stack([y, np.where(y >= 0, (y + 1) % CLASSES, -1)], axis=-1)
    models = []
    for inputs, targets in ((x, y), (flat[:LABELLED], y.reshape(PADDED, -1)[:LABELLED])):
        keras.utils.set_random_seed(11)
        layer = keras.Input(inputs.shape[1:])
        model = keras.Model(layer, row.make_head(CLASSES)(trunk()(layer)))
        compiled(model, row, run_eagerly=run_eagerly)
        model.fit(inputs, targets, batch_size=len(inputs), verbose=0, shuffle=False)
        models.append(model)
    assert_alike(row, *models)


# Weights a class


@every_class
def test_weights_of_classes_are_those_that_fit_takes(row):
    x, labels = examples(count=PADDED)
    weights = np.random.default_rng(3).uniform(0, 3, CLASSES)
    weights[labels[0]] = 0
    ours, theirs = (new_model(row, run_eagerly=True) for _ in range(2))
    loss = with_loss(row, class_weights=weights)
    ours.compile(row.make_optimizer(), loss=loss, run_eagerly=True)
    train(ours, x, labels)
    train(theirs, x, labels, class_weight=dict(enumerate(weights)))
    assert_alike(row, ours, theirs)
    value = ours.evaluate(x, labels, batch_size=PADDED, verbose=0)
    expected = theirs.evaluate(x, labels, PADDED, 0, sample_weight=weights[labels])
    np.testing.assert_allclose(value, expected, rtol=1e-4)


@every_head
def test_weights_of_classes_weigh_each_label_of_an_example(row):
    x, _ = examples(count=PADDED)
    rng = np.random.default_rng(3)
    weights = rng.uniform(0, 3, CLASSES)
    labels = rng.integers(-1, CLASSES, (PADDED, 3))
    labels[4] = -1
    model = new_model(row)
    value = with_loss(row, class_weights=weights)(labels, model(x))
    hidden, parts, terms = hidden_of(model, x), row.weights(head_of(model)), []
    for own, ids in zip(hidden, labels, strict=True):
        ids = np.unique(ids[ids >= 0])
        each = [weights[c] * row.oracle(own[np.newaxis], *parts, [[c]])[0] for c in ids]
        terms += [np.mean(each)] if each else []
    np.testing.assert_allclose(value, np.mean(terms), rtol=1e-5)
