# SPDX-License-Identifier: Apache-2.0
"""The two-tower example, on users who have items of one group."""

from __future__ import annotations

import json

import numpy as np
import pytest
import tensorflow as tf

pytest.importorskip("keras_rs")
GROUPS, ITEMS = 8, 12


@pytest.fixture
def example(load_example):
    return load_example("two_tower")


def test_an_example_is_what_came_before_an_item(example):
    class Histories:
        train = (np.array([3, 1, 2]), np.array([4]))
        num_classes = 5

    train = example.to_train_on(Histories, length=50)
    assert train.feature_ids.tolist() == [3, 1, 3] and train.label_ids.tolist() == [1, 2]
    assert train.feature_splits.tolist() == [0, 1, 3]
    np.testing.assert_allclose(train.feature_values, [1, 2**-0.5, 2**-0.5])
    shorter = example.to_train_on(Histories, length=1)
    assert shorter.feature_ids.tolist() == [3, 1]


@pytest.mark.thorough
@pytest.mark.parametrize("negatives", ["in-batch", "popularity"])
def test_finds_the_items_of_users_and_writes_a_servable(example, tmp_path, negatives):
    rng = np.random.default_rng(0)
    lines = []
    for user in range(1, 301):
        items = 1 + rng.integers(GROUPS) * ITEMS + rng.permutation(ITEMS)[: rng.integers(4, 9)]
        lines.append(f"{user} {' '.join(map(str, items))}\n")
    (tmp_path / "users.txt").write_text("".join(lines))
    options = {
        "--negatives": negatives,
        "--queue": 1,
        "--candidates": 20,
        "--width": 32,
        "--epochs": 6,
        "--batch-size": 32,
        "--learning-rate": 0.01,
        "--output": tmp_path / "run",
        "--export": tmp_path / "served",
    }
    command = [str(tmp_path), *(str(part) for pair in options.items() for part in pair)]
    results = example.main(command)
    assert results["test"]["HIT@20"] > 0.9  # a group has 12 items of 96
    assert json.loads((tmp_path / "run" / "results.json").read_text()) == results
    served = tf.saved_model.load(str(tmp_path / "served")).signatures["serving_default"]
    answer = served(
        inputs_indices=tf.constant([[0, 1]], tf.int64),
        inputs_values=tf.constant([1.0]),
        inputs_dense_shape=tf.constant([1, GROUPS * ITEMS + 1], tf.int64),
    )
    assert answer["ids"].shape == (1, 20)
