# SPDX-License-Identifier: Apache-2.0
"""InBatch: the labels of the batch and of earlier ones, with expected counts from the stream."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from oracles import samplers as oracle
from samplers.drawing import labels_of, zipf_batches
from variants import thorough

import tfx_largeout as tlo
from tfx_largeout.indexes import InvertedMultiIndex
from tfx_largeout.indexes.label_intervals import LabelIntervals
from tfx_largeout.samplers import InBatch
from tfx_largeout.samplers.base import OutputWeights

CLASSES, WIDTH, BATCH = 30, 4, 8
SEED = tf.constant([1, 2])


def weights_of(decay=0.01, classes=CLASSES):
    weights = OutputWeights(tf.zeros([classes, WIDTH]), index=LabelIntervals(decay))
    weights.index.rebuild(tf.Variable(weights.kernel))
    return weights


def drawn(weights, labels, queue=0):
    sampler = InBatch(queue)
    sampler.build(weights.kernel.shape[0])
    labels = labels_of(labels)
    return sampler.sample(tf.zeros([labels.ids.shape[0], WIDTH]), labels, SEED, weights)


@pytest.mark.parametrize("decay", [0.01, 0.3])
@pytest.mark.parametrize("queue", [0, 3])
def test_candidates_are_the_labels_of_the_batches_with_es_of_the_oracle(queue, decay):
    batches = zipf_batches(40, BATCH, CLASSES)
    after = oracle.label_intervals(batches[..., 0].tolist(), CLASSES, decay)
    weights = weights_of(decay)
    assert InBatch(queue).num_candidates(BATCH) == (BATCH * (1 + queue), False)
    for step, labels in enumerate(batches):
        ids, log_expected, of_labels = drawn(weights, labels, queue)
        there = np.unique(batches[max(step - queue, 0) : step + 1])
        np.testing.assert_array_equal(np.sort(ids), there)
        expected = 1 - (1 - 1 / np.maximum(after[step], 1)) ** (1 + queue)
        np.testing.assert_allclose(np.exp(log_expected), expected[ids], rtol=2e-5)
        np.testing.assert_allclose(np.exp(of_labels), expected[labels], rtol=2e-5)
        weights.index.note(labels_of(labels))
    np.testing.assert_allclose(weights.index.intervals, after[-1], rtol=1e-6)
    assert int(weights.index.clock) == len(batches)


def test_padding_is_no_candidate_and_leaves_the_estimate_alone():
    weights = weights_of()
    labels = [[3, -1], [-1, -1], [5, 3]]
    ids, log_expected, of_labels = drawn(weights, labels)
    assert sorted(ids.numpy()) == [-1, 3, 5]
    np.testing.assert_array_equal(log_expected.numpy()[ids.numpy() < 0], 0)
    np.testing.assert_array_equal(of_labels.numpy()[np.array(labels) < 0], 0)
    weights.index.note(labels_of(labels))
    assert np.flatnonzero(weights.index.numbers).tolist() == [3, 5]
    assert float(weights.index.health(None)["seen"]) == pytest.approx(2 / CLASSES)


def test_an_empty_batch():
    weights = weights_of()
    assert drawn(weights, np.zeros((0, 1), int)).ids.shape == (0,)
    weights.index.note(labels_of(np.zeros((0, 1), int)))
    assert int(weights.index.clock) == 1


def model_of(sampler, **options):
    head = tlo.heads.SampledHead(CLASSES, sampler, tlo.optimizers.RowAdam(0.05), seed=1, **options)
    model = keras.Sequential([keras.Input([CLASSES]), keras.layers.Dense(8), head])
    model.compile(keras.optimizers.SGD(0.1), loss=tlo.losses.SampledSoftmax())
    return model


def data(number=256):
    x = np.eye(CLASSES, dtype="float32")[zipf_batches(number, 1, CLASSES).ravel()]
    return x, np.argmax(np.roll(x, 1, axis=1), axis=1)


@pytest.mark.parametrize("queue", [*thorough(0), 2])
def test_a_head_trains_counts_and_goes_on_from_a_file(tmp_path, queue):
    keras.utils.set_random_seed(1)
    model, (x, y) = model_of(InBatch(queue)), data()
    model.fit(x, y, batch_size=16, epochs=8, shuffle=False, verbose=0)
    index = model.layers[-1].index
    assert isinstance(index, LabelIntervals) and int(index.clock) == 128
    assert index.numbers.numpy().sum() == 8 * sum(np.unique(part).size for part in np.split(y, 16))
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    for each in (model, again):
        each.fit(x, y, batch_size=16, epochs=2, shuffle=False, verbose=0)
    np.testing.assert_array_equal(model.predict(x[:9], verbose=0), again.predict(x[:9], verbose=0))
    assert (model.predict(x, verbose=0).argmax(axis=1) == y).mean() > 0.9


def test_looking_at_gradients_is_no_step():
    model, (x, y) = model_of(InBatch()), data(16)
    head = model.layers[-1]
    with head.without_update(), tf.GradientTape() as tape:
        loss = model.loss(y, model(x, training=True))
    tape.gradient(loss, model.trainable_variables)
    model.evaluate(x, y, verbose=0)
    assert int(head.index.clock) == 0


@pytest.mark.parametrize(
    ("act", "error", "message"),
    [
        (lambda: InBatch(-1), ValueError, "queue must be an integer of at least 0; got -1"),
        (lambda: InBatch(1.5), ValueError, "queue must be an integer .* got 1.5"),
        (lambda: InBatch(decay=0), ValueError, r"decay must be a .* above 0 .*; got 0"),
        (lambda: LabelIntervals(1.5), ValueError, r"decay must be a .* at most 1; got 1.5"),
        (
            lambda: model_of(InBatch(), index=InvertedMultiIndex(2)),
            TypeError,
            "index must be LabelIntervals for InBatch; got",
        ),
        (lambda: model_of(tlo.samplers.MIDX(3), index=LabelIntervals()), TypeError, "for MIDX"),
        (
            lambda: model_of(InBatch()).layers[-1].set_num_sampled(3),
            TypeError,
            "num_sampled, .* got InBatch",
        ),
    ],
)
def test_misuse(act, error, message):
    with pytest.raises(error, match=message):
        act()
