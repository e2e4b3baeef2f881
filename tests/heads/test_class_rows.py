# SPDX-License-Identifier: Apache-2.0
"""ClassRows: which worker has which rows, with the same initial values as the whole W."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfx_largeout.distribute.class_shard import ClassShard
from tfx_largeout.distribute.workers import ALONE, Workers
from tfx_largeout.ops.class_rows import ClassRows
from tfx_largeout.ops.rows import row_blocks


@pytest.mark.parametrize(("classes", "size"), [(7, 2), (8, 3), (3, 3), (100, 7)])
def test_each_class_has_one_row(classes, size):
    owners = [ClassRows(Workers(size, rank), classes, "head") for rank in range(size)]
    assert sum(rows.num_rows for rows in owners) == classes
    ids = tf.constant([[-1, *range(classes)]], tf.int64)
    found = np.stack([rows.of(ids).numpy()[0] for rows in owners])
    assert (found[:, 0] == -1).all()
    assert ((found[:, 1:] >= 0).sum(axis=0) == 1).all()
    for rank, rows in enumerate(owners):
        own = found[rank][found[rank] >= 0]
        np.testing.assert_array_equal(own, np.arange(rows.num_rows))
        shard = rows.shard.tensors(rows.num_rows)
        np.testing.assert_array_equal(shard.class_of(tf.constant(own)), range(rank, classes, size))


def test_own_candidates():
    rows = ClassRows(Workers(2, 1), 10, "head")
    ids, values = tf.constant([1, 4, 7, -1, 7], tf.int64), tf.constant([1.0, 2, 3, 0, 5])
    shared = rows.own(ids, values)
    np.testing.assert_array_equal(shared[0], [1, 7, 7])
    np.testing.assert_array_equal(shared[1], [1, 3, 5])
    own = rows.own(ids[tf.newaxis], values[tf.newaxis])
    np.testing.assert_array_equal(own[0], [[1, -1, 7, -1, 7]])
    np.testing.assert_array_equal(own[1], [[1, 0, 3, 0, 5]])
    alone = ClassRows(ALONE, 10, "head")
    assert alone.of(ids) is ids and alone.own(ids)[0] is ids and alone.num_rows == 10


@pytest.mark.parametrize("rows_a_block", [1, 3, 64])
@pytest.mark.parametrize("initializer", ["glorot_uniform", "zeros", "orthogonal"])
def test_rows_start_as_those_of_the_whole(monkeypatch, rows_a_block, initializer):
    monkeypatch.setattr(row_blocks, "_BLOCK_ELEMENTS", 4 * rows_a_block)
    kinds = {"orthogonal": keras.initializers.Orthogonal, "zeros": keras.initializers.Zeros}
    make = kinds.get(initializer, keras.initializers.GlorotUniform)
    start = make() if initializer == "zeros" else make(seed=1)
    whole = row_blocks.initialize_by_blocks(start, (17, 4), "float32").numpy()
    for first in range(5):
        shard = ClassShard(first, 5, 17)
        part = row_blocks.initialize_by_blocks(start, (17, 4), "float32", shard=shard)
        np.testing.assert_array_equal(part, whole[first::5])
