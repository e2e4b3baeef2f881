# SPDX-License-Identifier: Apache-2.0
"""The example of extreme classification, on a small set whose words determine the label."""

from __future__ import annotations

import argparse
import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest
from child import run_child
from variants import thorough

from tfx_largeout.datasets import read_predictions

EXAMPLE = str(Path(__file__).parents[2] / "examples" / "extreme_classification.py")
CLASSES = 60


def write_examples(file: Path, number: int, seed: int) -> None:
    """Class c shows by words 2 c and 2 c + 1, among words of no meaning."""
    rng = np.random.default_rng(seed)
    lines = [f"{number} {2 * CLASSES + 50} {CLASSES}"]
    for _ in range(number):
        labels = np.sort(rng.choice(CLASSES, 2, replace=False))
        noise = rng.choice(50, 3, replace=False) + 2 * CLASSES
        words = np.sort(np.concatenate([2 * labels, 2 * labels + 1, noise]))
        lines.append(",".join(map(str, labels)) + " " + " ".join(f"{w}:1" for w in words))
    file.write_text("\n".join(lines) + "\n")


def write_dense_examples(file: Path, number: int, seed: int) -> None:
    """Features below 0, above 0, far from 0, all equal, and all 0."""
    places = np.random.default_rng(9).standard_normal([CLASSES, 12])
    rng = np.random.default_rng(seed)
    lines = [f"{number} 14 {CLASSES}"]
    for label in rng.integers(CLASSES, size=number):
        values = places[label] + 0.2 * rng.standard_normal(12)
        values[:3] += [1e4, -50, 50]
        row = [*values, 3.1, 0]
        lines.append(f"{label} " + " ".join(f"{i}:{value:.4f}" for i, value in enumerate(row)))
    file.write_text("\n".join(lines) + "\n")


@pytest.mark.thorough
def test_learns_dense_features(tmp_path):
    write_dense_examples(tmp_path / "train.txt", 3000, seed=0)
    write_dense_examples(tmp_path / "test.txt", 200, seed=1)
    options = ["--epochs", 8, "--batch-size", 100, "--hidden", 64, "--learning-rate", 0.02]
    folders = ["--data", tmp_path, "--output", tmp_path / "run"]
    done = run_child(tmp_path, EXAMPLE, *map(str, folders + options))
    assert done.returncode == 0, done.stderr[-2000:]
    results = json.loads(done.stdout.strip().splitlines()[-1])
    assert results["softmax"]["P@1"] > 90
    assert results["with_neighbors"]["P@1"] > 90


@pytest.mark.thorough
@pytest.mark.parametrize("head", ["exact", *thorough("sampled")])
def test_learns_a_small_set_and_writes_what_it_finds(tmp_path, head):
    write_examples(tmp_path / "train.txt", 2000, seed=0)
    write_examples(tmp_path / "test.txt", 100, seed=1)
    lines = (tmp_path / "test.txt").read_text().splitlines()
    lines[7] = " " + lines[7].split(" ", 1)[1]  # has no labels
    (tmp_path / "test.txt").write_text("\n".join(lines) + "\n")
    options = {
        "--data": tmp_path,
        "--output": tmp_path / "run",
        "--epochs": 8,
        "--batch-size": 100,
        "--hidden": 32,
        "--head": head,
        "--learning-rate": 0.02,
    }
    done = run_child(tmp_path, EXAMPLE, *(str(part) for pair in options.items() for part in pair))
    assert done.returncode == 0, done.stderr[-2000:]
    results = json.loads(done.stdout.strip().splitlines()[-1])
    assert results["with_neighbors"]["P@1"] > 90
    assert results["softmax"]["P@1"] > 90
    _, predictions = read_predictions(tmp_path / "run" / "predictions.txt")
    assert predictions.shape == (100, 5)
    assert 0 <= predictions.min() <= predictions.max() < CLASSES
    assert (tmp_path / "run" / "best.weights.h5").exists()
    assert list((tmp_path / "run").glob("train/events*"))


def settled(number, num_classes, **given):
    spec = importlib.util.spec_from_file_location("example", EXAMPLE)
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    options = {"batch_size": 512, "head": None, "epochs": None, "held_out": None, **given}
    arguments = argparse.Namespace(**options)
    example.settle(arguments, number, num_classes)
    return arguments


@pytest.mark.all_cases
@pytest.mark.parametrize(
    "number, num_classes, head, epochs, held_out",
    [
        (108_134, 139_536, "sampled", 8, 0.02),
        (25_000, 1_000, "exact", 9, 0.04),
        (4_801, 159, "exact", 50, 0.1),
        (300, 200_000, "sampled", 400, 0.1),
    ],
)
def test_what_is_not_given_goes_by_the_data(number, num_classes, head, epochs, held_out):
    arguments = settled(number, num_classes)
    assert (arguments.head, arguments.epochs) == (head, epochs)
    assert arguments.held_out == pytest.approx(held_out)


def test_what_is_given_stays():
    arguments = settled(300, 200_000, head="exact", epochs=3, held_out=0.5)
    assert (arguments.head, arguments.epochs, arguments.held_out) == ("exact", 3, 0.5)
