# SPDX-License-Identifier: Apache-2.0
"""A tiny data set in the repository's format, which a model learns within a second."""

from __future__ import annotations

import random
from pathlib import Path

import keras
import pytest

needs_two_optimizers = pytest.mark.skipif(
    not hasattr(keras.optimizers, "MultiOptimizer"), reason="a Keras without MultiOptimizer"
)
NUM_CLASSES, NUM_FEATURES = 200, 50


def write_examples(path: Path, num_examples: int, seed: int) -> None:
    choose = random.Random(seed)
    lines = [f"{num_examples} {NUM_FEATURES} {NUM_CLASSES}"]
    for _ in range(num_examples):
        features = sorted(choose.sample(range(NUM_FEATURES), 3))
        # The first feature decides the labels.
        labels = [4 * features[0], 4 * features[0] + 1]
        values = " ".join(f"{feature}:{1 + (feature == features[0])}" for feature in features)
        lines.append(",".join(map(str, labels)) + " " + values)
    path.write_text("\n".join(lines) + "\n")


@pytest.fixture(scope="session")
def tiny_data(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    write_examples(folder / "tiny_train.txt", 640, seed=1)
    write_examples(folder / "tiny_test.txt", 100, seed=2)
    return folder


@pytest.fixture
def no_picture(monkeypatch):
    """Drawing takes two seconds."""
    monkeypatch.setattr("tfx_largeout.compare.comparison.plot_curves", lambda *_: None)
