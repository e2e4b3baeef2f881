# SPDX-License-Identifier: Apache-2.0
"""The two-tower example, on users whose items follow from what is known of them."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

pytest.importorskip("keras_rs")
EXAMPLE = Path(__file__).parents[2] / "examples" / "two_tower.py"
ITEMS = 40


def write_users(file: Path, number: int, seed: int) -> None:
    """Who knows feature c, among others, likes items c and c + 1."""
    rng = np.random.default_rng(seed)
    lines = [f"{number} {ITEMS + 10} {ITEMS}"]
    for _ in range(number):
        item = rng.integers(ITEMS - 1)
        others = np.sort(rng.choice(10, 2, replace=False)) + ITEMS
        lines.append(f"{item},{item + 1} {item}:1 {others[0]}:1 {others[1]}:1")
    file.write_text("\n".join(lines) + "\n")


@pytest.mark.thorough
def test_finds_the_items_of_users_and_writes_a_servable(tmp_path):
    write_users(tmp_path / "train.txt", 1500, seed=0)
    write_users(tmp_path / "test.txt", 99, seed=1)
    header, *users = (tmp_path / "test.txt").read_text().splitlines()
    unlabeled = f" {ITEMS}:1"  # someone of whom no item is known
    (tmp_path / "test.txt").write_text("\n".join(["100" + header[2:], *users, unlabeled, ""]))
    spec = importlib.util.spec_from_file_location("two_tower", EXAMPLE)
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    options = {
        "--width": 32,
        "--epochs": 8,
        "--batch-size": 50,
        "--candidates": 10,
        "--learning-rate": 0.01,
        "--k": 3,
        "--output": tmp_path / "run",
        "--export": tmp_path / "served",
    }
    command = [str(tmp_path), *(str(part) for pair in options.items() for part in pair)]
    history = example.main(command)
    assert history["val_recall_at_20"][-1] > 0.95
    assert history["val_ndcg_at_20"][-1] > 0.9
    retrieved = np.load(tmp_path / "run" / "retrieved.npz")
    assert retrieved["ids"].shape == retrieved["scores"].shape == (100, 3)
    served = tf.saved_model.load(str(tmp_path / "served")).signatures["serving_default"]
    _, test = example.load(str(tmp_path))
    x, _ = next(iter(test.dataset(100)))
    answer = served(
        inputs_indices=x.indices, inputs_values=x.values, inputs_dense_shape=x.dense_shape
    )
    np.testing.assert_array_equal(answer["ids"], retrieved["ids"])
