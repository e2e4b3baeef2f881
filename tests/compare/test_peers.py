# SPDX-License-Identifier: Apache-2.0
"""Peers: neighbors against NumPy, and that each that is installed learns a small set."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from tfx_largeout.compare.data import find_files, load
from tfx_largeout.compare.peers import PEERS, precision, train_peer
from tfx_largeout.compare.results import HeadResult
from tfx_largeout.compare.settings import DataSettings
from tfx_largeout.datasets import tf_idf


@pytest.fixture(scope="module")
def examples(tiny_data):
    return load(DataSettings(None, *find_files(str(tiny_data))))


@pytest.mark.parametrize("name", PEERS)
def test_a_peer_learns_and_tells(name, examples):
    if not PEERS[name].installed:
        pytest.skip(f"{PEERS[name].package} is not installed")
    result = HeadResult(name, {})
    train_peer(name, *examples, lambda **told: result.take(told))
    assert (result.stage, result.status, len(result.notes)) == ("training", "done", 1)
    assert result.data["classes"] == 200
    (point,) = result.curve
    assert point.precision_at_1 > 0.4  # chance: 0.01
    assert point.exact_loss is None
    assert 0 <= point.seconds == result.seconds


@pytest.mark.skipif(not PEERS["omikuji"].installed, reason="omikuji is not installed")
def test_omikuji_learns_beside_an_example_without_features(examples):
    train, test = examples
    first = train.feature_splits[1]
    without = dataclasses.replace(
        train,
        feature_splits=np.maximum(train.feature_splits - first, 0),
        feature_ids=train.feature_ids[first:],
        feature_values=train.feature_values[first:],
    )
    ids = PEERS["omikuji"].train(without)(test)
    assert precision(ids, test)[1] > 0.4


def test_neighbors_are_those_of_the_formula(examples):
    train, test = tf_idf(*examples)
    found = PEERS["tf_idf_neighbors"].train(train)(test)
    a, b = dense(train), dense(test)
    labels = np.zeros([len(train), train.num_labels])
    labels[np.repeat(np.arange(len(train)), np.diff(train.label_splits)), train.label_ids] = 1
    for query, ids in zip(b, found, strict=True):
        cosines = np.float32(a @ query)
        near = np.argsort(-cosines, kind="stable")[:100]
        near = near[cosines[near] > 0]
        weights = np.exp(cosines[near] / 0.1)
        scores = weights @ labels[near] / weights.sum()
        np.testing.assert_allclose(scores[ids], -np.sort(-scores)[:5], rtol=0.02)


def test_neighbors_are_looked_for_by_as_many_examples_as_time_allows(examples, monkeypatch):
    monkeypatch.setattr("tfx_largeout.compare.peers._MOST_PAIRS", 640 * 7)
    result = HeadResult("tf_idf_neighbors", {})
    train_peer("tf_idf_neighbors", *examples, lambda **told: result.take(told))
    assert result.data["test_examples"] == 7
    assert "of 7 test examples" in result.notes[0]


def dense(examples):
    rows = np.zeros([len(examples), examples.num_features])
    row = np.repeat(np.arange(len(examples)), np.diff(examples.feature_splits))
    rows[row, examples.feature_ids] = examples.feature_values
    return rows


def test_precision_of_ids_that_are_missing(examples):
    _, test = examples
    ids = np.full([len(test), 5], -1)
    ids[:, 0] = test.label_ids[test.label_splits[:-1]]
    assert precision(ids, test) == {1: 1.0, 3: pytest.approx(1 / 3), 5: pytest.approx(0.2)}
