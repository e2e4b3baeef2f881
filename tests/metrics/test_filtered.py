# SPDX-License-Identifier: Apache-2.0
"""Ranking metrics without the classes that each example excludes."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from metrics.metrics_table import CASES, NUM_CLASSES, random_batch
from oracles.class_filter import findable

import tfx_largeout as tlo
from tfx_largeout import metrics

RANKED = [case for case in CASES if case.name not in ("exact_loss", "perplexity")]
WIDTH, EXAMPLES = 6, 24
every_case = pytest.mark.parametrize("case", RANKED, ids=lambda case: case.name)


def excluded_batch(seed=7, number=5):
    excluded = np.random.default_rng(seed).integers(-1, NUM_CLASSES, (EXAMPLES, number))
    excluded[0] = -1
    excluded[1, :2] = 3  # twice
    return excluded


def masked(scores, excluded):
    return np.ma.masked_array(scores, ~findable(NUM_CLASSES, excluded))


@every_case
def test_of_plain_logits(case):
    scores, labels = random_batch(1)
    excluded = excluded_batch()
    metric, ragged = case.make(), tf.ragged.constant([[c for c in r if c >= 0] for r in excluded])
    metric.update_state(labels[:9], scores[:9], exclude=excluded[:9])
    metric.update_state(labels[9:], scores[9:], exclude=ragged[9:])
    expected = case.expected(masked(scores, excluded), labels)
    np.testing.assert_allclose(metric.result(), expected, rtol=2e-6)
    unfiltered = case.make()
    unfiltered.update_state(labels, scores)
    assert float(unfiltered.result()) == pytest.approx(case.expected(scores, labels), rel=2e-6)


def model_of(own_metrics, head=None):
    inputs = keras.Input([WIDTH], name="x")
    seen = keras.Input([None], dtype="int64", name="seen")
    head = head or tlo.heads.DenseHead(NUM_CLASSES, kernel_initializer="random_normal")
    model = keras.Model([inputs, seen], head(keras.layers.Dense(WIDTH)(inputs), exclude=seen))
    model.compile("sgd", tlo.losses.SoftmaxCrossentropy(), metrics=own_metrics)
    return model


X = np.random.default_rng(1).normal(size=(EXAMPLES, WIDTH)).astype("float32")


@pytest.mark.parametrize("run_eagerly", [False, True], ids=["graph", "eager"])
def test_of_a_model_whose_head_knows_what_is_excluded(run_eagerly, tmp_path):
    excluded, (_, labels) = excluded_batch(), random_batch(2)
    own = [case.make(filtered=True, name=f"filtered_{case.name}") for case in RANKED]
    own += [case.make() for case in RANKED]
    model = model_of(own)
    model.run_eagerly = run_eagerly
    model.fit([X, excluded], labels, verbose=0)
    logits = model.predict([X, excluded], verbose=0)
    found = model.evaluate([X, excluded], labels, batch_size=7, return_dict=True, verbose=0)
    for case in RANKED:
        assert found[case.name] == pytest.approx(case.expected(logits, labels), rel=2e-6)
        expected = case.expected(masked(logits, excluded), labels)
        assert found[f"filtered_{case.name}"] == pytest.approx(expected, rel=2e-6)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    again = loaded.evaluate([X, excluded], labels, return_dict=True, verbose=0)
    assert again["filtered_recall_at_3"] == pytest.approx(found["filtered_recall_at_3"])


def test_what_the_model_excludes_is_not_found_by_top_k_model():
    excluded = excluded_batch()
    model = model_of([])
    own = tlo.top_k_model(model, 4).predict([X, excluded], verbose=0)
    plain = keras.Model(model.inputs[0], model.layers[-1](model.layers[1].output))
    given = tlo.top_k_model(plain, 4, exclude=True).predict([X, excluded], verbose=0)
    np.testing.assert_array_equal(own[1], given[1])
    both = tlo.top_k_model(model, 4, exclude=True)
    more = np.full([EXAMPLES, 1], 2)
    joined = np.concatenate([excluded, more], axis=1)
    np.testing.assert_array_equal(
        both.predict([[X, excluded], more], verbose=0)[1],
        tlo.top_k_model(plain, 4, exclude=True).predict([X, joined], verbose=0)[1],
    )


def test_a_head_and_an_excluded_list_of_an_own_loop():
    scores, labels = random_batch(3)
    excluded = excluded_batch()
    head = tlo.heads.DenseHead(NUM_CLASSES, kernel_initializer="identity")
    for case in RANKED:
        metric = case.make()
        metric.update_state(labels, head(scores), exclude=excluded)
        expected = case.expected(masked(scores, excluded), labels)
        np.testing.assert_allclose(metric.result(), expected, rtol=2e-6)


ALLOWED = [1, 2, 5, 7, 8, 11]
GROUPS = np.where(np.isin(np.arange(NUM_CLASSES), ALLOWED), 0, -1)
HEADS = {
    "dense": lambda: tlo.heads.DenseHead(NUM_CLASSES),
    "factored": lambda: tlo.heads.FactoredHead(NUM_CLASSES, 0.1),
}


@pytest.mark.parametrize("kind", HEADS)
def test_among_allowed_classes(kind):
    excluded, (_, labels) = excluded_batch(), random_batch(2)
    wanted = [-1] * EXAMPLES
    own = [case.make(allow=ALLOWED, name=f"among_{case.name}") for case in RANKED]
    own += [case.make(allow=ALLOWED, filtered=True, name=f"both_{case.name}") for case in RANKED]
    model = model_of(own, HEADS[kind]())
    model.compile(loss=tlo.losses.SquaredError() if kind == "factored" else None, metrics=own)
    logits = model.predict([X, excluded], verbose=0)
    found = model.evaluate([X, excluded], labels, batch_size=7, return_dict=True, verbose=0)
    hidden = {
        "among": ~findable(NUM_CLASSES, np.full([EXAMPLES, 1], -1), GROUPS, wanted),
        "both": ~findable(NUM_CLASSES, excluded, GROUPS, wanted),
    }
    for case in RANKED:
        for name, mask in hidden.items():
            expected = case.expected(np.ma.masked_array(logits, mask), labels)
            assert found[f"{name}_{case.name}"] == pytest.approx(expected, rel=2e-6)
            metric = type(case.make()).from_config(case.make(allow=ALLOWED).get_config())
            exclude = excluded if name == "both" else None
            metric.update_state(labels, logits, exclude=exclude)
            assert float(metric.result()) == pytest.approx(expected, rel=2e-6)


def test_all_classes_are_excluded():
    scores, labels = random_batch(3)
    everything = np.tile(np.arange(NUM_CLASSES), [EXAMPLES, 1])
    for case in RANKED:
        metric = case.make()
        metric.update_state(labels, scores, exclude=everything)
        assert float(metric.result()) == 0


def test_refusals():
    scores, labels = random_batch(3)
    with pytest.raises(ValueError, match="allow must have at least one class"):
        metrics.RecallAtK(3, allow=[])
    with pytest.raises(ValueError, match="allow must be class ids below num_classes=13; got 13"):
        metrics.RecallAtK(3, allow=[NUM_CLASSES]).update_state(labels, scores)
    tree = tlo.heads.HierarchicalSoftmaxHead(NUM_CLASSES, tlo.optimizers.RowSGD(0.1))
    with pytest.raises(TypeError, match="allow must be None for HierarchicalSoftmaxHead"):
        metrics.RecallAtK(3, allow=[1]).update_state(labels, tree(scores))
    with pytest.raises(ValueError, match="filtered must be True or False; got 1"):
        metrics.RecallAtK(3, filtered=1)
    metric = metrics.RecallAtK(3, filtered=True)
    with pytest.raises(ValueError, match=r"filtered must be False unless .* got logits without"):
        metric.update_state(labels, scores)
    head = tlo.heads.DenseHead(NUM_CLASSES)
    with pytest.raises(ValueError, match=r"filtered must be False unless .* got a call of"):
        metric.update_state(labels, head(scores))
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"exclude: each id must .* 13"):
        metric.update_state(labels, scores, exclude=np.full([EXAMPLES, 1], NUM_CLASSES))
    with pytest.raises(TypeError, match="exclude must be integers"):
        metric.update_state(labels, head(scores), exclude=np.full([EXAMPLES, 1], 1.0))
    assert float(metric.denominator) == 0
