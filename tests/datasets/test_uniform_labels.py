# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from oracles import weighting_and_sampling as oracle
from oracles import xc_files

from tfx_largeout.datasets import SparseExamples, load_wordnet, read_xc, uniform_labels

NUM_LABELS = 40


@pytest.fixture
def rows():
    """Training and test rows with labels of very different frequency."""
    rng = np.random.default_rng(0)

    def draw(num_rows):
        drawn = xc_files.draw(rng, num_rows, 30, NUM_LABELS)
        labels = [np.unique(rng.geometric(0.15, 4).clip(max=NUM_LABELS) - 1) for _ in drawn]
        return [(row.tolist(), features) for row, (_, features) in zip(labels, drawn, strict=True)]

    return draw(300), draw(60)


@pytest.fixture
def containers(rows, tmp_path):
    paths = [xc_files.write(tmp_path / f"{i}.txt", r, 30, NUM_LABELS) for i, r in enumerate(rows)]
    return [read_xc(path) for path in paths]


def assert_same(examples: SparseExamples, rows: list[xc_files.Row]) -> None:
    assert np.split(examples.label_ids, examples.label_splits[1:-1])[0].tolist() == rows[0][0]
    assert examples.label_ids.tolist() == [label for labels, _ in rows for label in labels]
    assert np.diff(examples.label_splits).tolist() == [len(labels) for labels, _ in rows]
    assert examples.feature_ids.tolist() == [i for _, features in rows for i in sorted(features)]


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("max_count", [1, 12])
def test_as_defined(rows, containers, max_count, seed):
    train, test = uniform_labels(*containers, num_labels=15, max_count=max_count, seed=seed)

    arguments = (15, max_count, seed)
    assert_same(train, oracle.uniform_labels(rows[0], rows[0], *arguments, sample=True))
    assert_same(test, oracle.uniform_labels(rows[0], rows[1], *arguments, sample=False))
    assert train.num_labels == test.num_labels == 15


def test_every_label_is_equally_frequent_by_default():
    (train,) = load_wordnet("hyper", ["test"])

    (uniform,) = uniform_labels(train, num_labels=2000)

    counts = uniform.label_counts()
    assert counts.min() == counts.max() == np.sort(train.label_counts())[-2000]
    assert np.diff(uniform.label_splits).min() >= 1


def test_counts_are_capped_and_no_rarer_label_is_kept(containers):
    before = containers[0].label_counts()

    (uniform,) = uniform_labels(containers[0], num_labels=20, max_count=30)

    kept = np.sort(np.argsort(-before, kind="stable")[:20])
    np.testing.assert_array_equal(uniform.label_counts(), np.minimum(before[kept], 30))


def test_inputs_stay_and_the_seed_decides(containers):
    before = containers[0].label_ids.copy()

    first, again, other = (
        uniform_labels(containers[0], num_labels=15, seed=seed)[0] for seed in (1, 1, 2)
    )

    np.testing.assert_array_equal(containers[0].label_ids, before)
    np.testing.assert_array_equal(first.label_ids, again.label_ids)
    assert first.label_ids.tolist() != other.label_ids.tolist()


def test_bad_arguments(containers):
    train, test = containers
    occurring = np.count_nonzero(train.label_counts())
    with pytest.raises(ValueError, match=f"num_labels must .* {occurring}; got {occurring + 1}"):
        uniform_labels(train, num_labels=occurring + 1)
    for name, value in [
        ("num_labels", 0),
        ("num_labels", 1.5),
        ("max_count", 0),
        ("max_count", 1.5),
        ("seed", -1),
        ("seed", 1.5),
    ]:
        with pytest.raises(ValueError, match=f"{name} must be an integer of .*; got {value}"):
            uniform_labels(train, **{"num_labels": 3, name: value})
    with pytest.raises(ValueError, match="others must have num_labels = 40, as train; got 41"):
        uniform_labels(train, dataclasses.replace(test, num_labels=41), num_labels=3)
