# SPDX-License-Identifier: Apache-2.0
"""The distribution of the data of benchmarks/recommender_scale.py, and its best ranking."""

from __future__ import annotations

import numpy as np
import pytest

CLUSTERS, SIZE = 4, 30


@pytest.fixture
def law(import_modules, monkeypatch):
    (module,) = import_modules("recommender_scale")
    monkeypatch.setattr(module, "CLUSTERS", CLUSTERS)
    return module.Law(CLUSTERS * SIZE)


def probabilities(law, last):
    """Of the next item, by the definition: `[n, C]`."""
    place = {cluster: i for i, cluster in enumerate(law.circle)}
    result = np.zeros((len(last), 1 + CLUSTERS * SIZE))
    for row, item in zip(result, last, strict=True):
        following = law.circle[(place[(item - 1) % CLUSTERS] + 1) % CLUSTERS]
        for other in range(1, len(row)):
            rank, cluster = divmod(other - 1, CLUSTERS)
            row[other] = (0.8 * (cluster == following) + 0.2 / CLUSTERS) / (rank + 1)
    return result / result.sum(axis=1, keepdims=True)


def test_items_follow_each_other_by_the_law(law):
    rows = law.sequences(4_000, 3, np.random.default_rng(0))
    last = 1 + rows[:, 1] % CLUSTERS
    expected = probabilities(law, last).sum(axis=0)
    found = np.bincount(rows[:, 2], minlength=len(expected))
    assert found[0] == 0 and len(found) == len(expected)
    assert (np.abs(found - expected) < 4.5 * np.sqrt(expected) + 1e-9).all()


def test_the_best_is_that_of_the_definition(law):
    from recommenders import evaluate

    rows = law.sequences(500, 7, np.random.default_rng(1))
    before, items = rows[:, :-1], rows[:, -1]
    found = evaluate(
        lambda seen: probabilities(law, seen[:, -1]),
        list(before),
        items,
        law.counts(),
    )
    assert law.best_ndcg(before, items) == pytest.approx(found["NDCG@10"], rel=1e-6)
    assert 0.1 < found["NDCG@10"] < 0.5
