# SPDX-License-Identifier: Apache-2.0
"""The examples' measures, against the benchmark's in NumPy, and these against the definition."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfx_largeout as tlo

USERS, ITEMS = 50, 12


@pytest.fixture
def modules(import_modules):
    """The example's module and the benchmark's."""
    return import_modules("ranking", "recommenders")


def random_case(seed):
    """Scores, with ties for an even seed; histories of up to 5 items, and the next item."""
    rng = np.random.default_rng(seed)
    table = rng.integers(0, 6, (USERS, ITEMS + 1)) + rng.random((USERS, ITEMS + 1)) * (seed % 2)
    before = [rng.integers(1, ITEMS + 1, rng.integers(6)) for _ in table]
    before = [np.append(row, ITEMS - i // 5) for i, row in enumerate(before)]
    _, first = np.unique([",".join(map(str, row)) for row in before], return_index=True)
    items = rng.integers(1, ITEMS + 1, USERS)
    return table[first].astype("float32"), [before[i] for i in first], items[first]


def of_histories(table, before):
    """Users are in another order: each is identified by the history."""
    rows = {tuple(row): scores for row, scores in zip(before, table, strict=True)}
    return lambda seen: np.array([rows[tuple(row[row > 0])] for row in seen])


def by_definition(table, before, items, counts, k):
    best, ranks = [], []
    for scores, had, item in zip(table, before, items, strict=True):
        left = [c for c in range(1, len(scores)) if c not in had]
        order = sorted(left, key=lambda c: (-scores[c], c))
        best.append(order[:k])
        ranks.append(order.index(item) if item in order else np.inf)
    ranks = np.array(ranks)
    result = {"MRR": np.mean(1 / (1 + ranks))}
    for cut in (5, 10, 20):
        result[f"HIT@{cut}"] = np.mean(ranks < cut)
        result[f"NDCG@{cut}"] = np.mean((ranks < cut) / np.log2(np.minimum(ranks, 99) + 2))
    result[f"coverage@{k}"] = np.unique(np.concatenate(best)).size / (len(counts) - 1)
    result[f"popularity@{k}"] = counts[np.concatenate(best)].mean()
    return result


@pytest.mark.parametrize(("batch_size", "seed"), [(7, 0), (512, 1)])
def test_the_benchmark_measures_what_is_defined(modules, batch_size, seed):
    table, before, items = random_case(seed)
    counts = np.arange(ITEMS + 1)
    scores = of_histories(table, before)
    found = modules[1].evaluate(scores, before, items, counts, 3, batch_size)
    expected = by_definition(table, before, items, counts, 3)
    if seed % 2 == 0:  # which of equal items is recommended is open
        found = {name: value for name, value in found.items() if not name.endswith("@3")}
    for name, value in found.items():
        assert value == pytest.approx(expected[name]), name


def test_the_examples_measure_the_same_by_filtered_metrics(modules):
    table, before, items = random_case(1)
    counts = np.arange(ITEMS + 1)
    histories = modules[1].data
    had, x = keras.Input((None,), dtype="int64"), keras.Input((ITEMS + 1,))
    head = tlo.heads.DenseHead(ITEMS + 1, use_bias=False, kernel_initializer=np.eye(ITEMS + 1))
    model = keras.Model([x, had], head(x, exclude=had))
    ranking = modules[0].Ranking(model, tlo.losses.SoftmaxCrossentropy(), counts, k=3)
    seen = np.pad(histories.padded(before), [[0, 0], [1, 0]])
    data = tf.data.Dataset.from_tensor_slices(((table, seen), items)).batch(9)
    expected = by_definition(table, before, items, counts, 3)
    found = ranking(data)
    assert found.keys() == expected.keys()
    for name, value in found.items():
        assert value == pytest.approx(expected[name], rel=1e-5), name
