# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tfx_largeout.ops.sorted_search import lower_bound, padded_rows, upper_bound

ASCENDING = np.array([-3, 0, 0, 4, 4, 4, 9])


@pytest.mark.parametrize("shape", [(), (0,), (5,), (0, 2), (3, 0), (3, 4), (2, 3, 4)], ids=str)
@pytest.mark.parametrize(("bound", "side"), [(lower_bound, "left"), (upper_bound, "right")])
@pytest.mark.parametrize("wrap", [lambda f: f, tf.function], ids=["eager", "graph"])
def test_same_as_numpy(bound, side, shape, wrap):
    values = np.random.default_rng(1).integers(-5, 12, shape)
    found = wrap(bound)(tf.constant(ASCENDING), tf.constant(values))
    assert found.dtype == tf.int64
    np.testing.assert_array_equal(found, np.searchsorted(ASCENDING, values, side))


@pytest.mark.parametrize("lengths", [[2, 0, 3], [0, 0], [], [1], [0, 4, 0, 0]])
@pytest.mark.parametrize("in_graph", [False, True])
def test_padded_rows_are_those_of_ragged_tensors(lengths, in_graph):
    rows = np.repeat(np.arange(len(lengths)), lengths)
    ids, values = np.arange(len(rows)) + 5, np.linspace(1, 2, len(rows)).astype("float32")
    call = tf.function(padded_rows, autograph=False) if in_graph else padded_rows
    matrices = call(
        tf.constant(rows, tf.int64),
        tf.constant(len(lengths), tf.int64),
        (tf.constant(ids, tf.int64), -1),
        (tf.constant(values), 0.5),
    )
    for matrix, entries, padding in zip(matrices, (ids, values), (-1, 0.5), strict=True):
        ragged = tf.RaggedTensor.from_row_lengths(entries, lengths)
        np.testing.assert_array_equal(matrix, ragged.to_tensor(padding))
