# SPDX-License-Identifier: Apache-2.0
"""The parts of a batch: together they equal the batch, and padding is marked."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tfx_largeout.distribute import dataset_shard, shard
from tfx_largeout.distribute.workers import Workers
from tfx_largeout.tensorflow_internals import batch_size_of

X = np.arange(22, dtype="float32").reshape([11, 2])
Y = tf.ragged.constant([[n] * (n % 3 + 1) for n in range(11)], dtype=tf.int64)
S = tf.sparse.from_dense(X * (X % 4 > 0))


@pytest.fixture
def part_of(monkeypatch):
    """Returns a function that gives worker r's batches of a data set."""
    monkeypatch.setattr(dataset_shard, "agree", lambda *arguments: None)

    def run(dataset, size, rank):
        monkeypatch.setattr(dataset_shard, "current", lambda: Workers(size, rank))
        return list(shard(dataset))

    return run


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("weighted", [False, True])
def test_parts_make_up_the_batch(part_of, size, weighted):
    weights = np.where(np.arange(11) % 4 == 0, -0.0, np.arange(11)).astype("float32")
    data = ({"a": X, "b": S}, Y, weights) if weighted else ({"a": X, "b": S}, Y)
    dataset = tf.data.Dataset.from_tensor_slices(data).batch(5)  # 5, 5 and 1 examples
    parts = [part_of(dataset, size, rank) for rank in range(size)]
    seen = []
    for batch, n in zip(zip(*parts, strict=True), (5, 5, 1), strict=True):
        each = -(-n // size)
        for x, y, weight in batch:
            assert x["a"].shape[0] == y.shape[0] == weight.shape[0] == each
            assert x["b"].dense_shape[0] == each
            real = ~np.signbit(weight.numpy())
            np.testing.assert_array_equal(
                tf.sparse.to_dense(x["b"]).numpy()[real],
                (x["a"] * tf.cast(x["a"] % 4 > 0, tf.float32)).numpy()[real],
            )
            seen += [
                (a, l, w)
                for a, l, w in zip(
                    x["a"].numpy()[real, 0], y.to_list(), weight.numpy()[real], strict=False
                )
            ]
    rows = [int(a) // 2 for a, _, _ in seen]
    assert rows == list(range(11))
    assert [labels for _, labels, _ in seen] == Y.to_list()
    np.testing.assert_array_equal(
        [w for *_, w in seen], np.abs(weights) if weighted else np.ones(11)
    )


@pytest.mark.parametrize("as_tuple", [False, True])
def test_for_predict_nothing_is_filled_up(part_of, as_tuple):
    dataset = tf.data.Dataset.from_tensor_slices((X,) if as_tuple else X).batch(5)
    parts = [part_of(dataset, 4, rank) for rank in range(4)]
    if as_tuple:
        parts = [[element for (element,) in part] for part in parts]
    assert [[len(x) for x in part] for part in parts] == [
        [2, 2, 1],
        [2, 2, 0],
        [1, 1, 0],
        [0, 0, 0],
    ]
    together = [np.concatenate(batch) for batch in zip(*parts, strict=True)]
    np.testing.assert_array_equal(np.concatenate(together), X)


def test_workers_agree_on_the_size_of_batches(monkeypatch):
    said = []
    monkeypatch.setattr(dataset_shard, "agree", lambda workers, site, facts: said.append(facts))
    monkeypatch.setattr(dataset_shard, "current", lambda: Workers(2))
    numbers = tf.data.Dataset.range(20)
    found = {7: numbers.batch(7), 5: numbers.batch(5).map(lambda x: x).prefetch(2).repeat(3)}
    for dataset in found.values():
        shard(dataset)
    assert [facts["the batch size (0: not known)"] for facts in said] == list(found)
    assert batch_size_of(numbers) == 0
