# SPDX-License-Identifier: Apache-2.0
"""The two-tower example, on users who have items of one group."""

from __future__ import annotations

import json

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfx_largeout as tlo

pytest.importorskip("keras_rs")
GROUPS, ITEMS = 8, 12


@pytest.fixture
def example(load_example):
    return load_example("two_tower")


def test_an_example_is_what_came_before_an_item(example):
    class Histories:
        train = (np.array([3, 1, 2]), np.array([4]))

    rows = example.to_train_on(Histories, length=50)
    assert [(x.tolist(), y.tolist()) for x, y in rows] == [([3], [1]), ([3, 1], [2])]
    rows = example.to_train_on(Histories, length=1)
    assert [(x.tolist(), y.tolist()) for x, y in rows] == [([3], [1]), ([1], [2])]


def test_known_are_the_different_items_as_a_vector_of_length_1(example):
    items = np.array([[0, 3, 1, 3, 0], [4, 4, 0, 0, 0], [0, 0, 0, 0, 0]])
    expected = np.zeros((3, 6))
    for row, known in zip(expected, items, strict=True):
        different = np.unique(known[known > 0])
        row[different] = 1 / np.sqrt(max(len(different), 1))
    found = example.Known(6)(tf.constant(items, tf.int64))
    np.testing.assert_allclose(tf.sparse.to_dense(found), expected, rtol=1e-6)


def test_users_without_an_item_to_learn_are_refused(example, tmp_path):
    (tmp_path / "users.txt").write_text("1 5 6 7\n2 6 7 5\n")
    with pytest.raises(SystemExit, match="a user must have 4 items at least; got none that has"):
        example.main([str(tmp_path / "users.txt"), "--k=2", f"--output={tmp_path / 'run'}"])


@pytest.mark.thorough
@pytest.mark.parametrize("negatives", ["in-batch", "popularity"])
def test_finds_the_items_of_users_and_serves_them(example, tmp_path, capsys, negatives):
    rng = np.random.default_rng(0)
    lines = []
    for user in range(1, 301):
        items = 1 + rng.integers(GROUPS) * ITEMS + rng.permutation(ITEMS)[: rng.integers(4, 9)]
        lines.append(f"{user} {' '.join(map(str, 10 * items))}\n")
    (tmp_path / "users.txt").write_text("".join(lines))
    options = {
        "--negatives": negatives,
        "--queue": 1,
        "--candidates": 20,
        "--width": 32,
        "--epochs": 6,
        "--batch-size": 32,
        "--learning-rate": 0.01,
        "--k": 5,
        "--output": tmp_path / "run",
    }
    command = [str(tmp_path), *(str(part) for pair in options.items() for part in pair)]
    results = example.main(command)
    assert results["test"]["HIT@20"] > 0.9  # a group has 12 items of 96
    assert json.loads((tmp_path / "run" / "results.json").read_text()) == results
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(" ")[0] for line in lines[-3:]] == ["user", "validation:", "test:"]

    # Served: ids in, names out, most of the same group, none that was had; so from a file.
    folder = str(tmp_path / "run" / "served" / "1")
    served = tf.saved_model.load(folder).signatures["serving_default"]
    history = np.array([[10, 20, 20, 30, 0], [0, 130, 150, 0, 140], [0, 0, 0, 0, 0]])
    answer = served(inputs=tf.constant(history))
    for had, names, start in zip(history, answer["names"].numpy(), (10, 130), strict=False):
        found = {int(name) for name in names}
        assert len(found & set(range(start, start + 120, 10))) >= 3 and not found & set(had)
    loaded = tlo.top_k_model(keras.models.load_model(tmp_path / "run" / "model.keras"), 5)
    np.testing.assert_array_equal(loaded.predict(history, verbose=0)[1], answer["ids"])
