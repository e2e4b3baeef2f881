# SPDX-License-Identifier: Apache-2.0
"""padded_rows."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tfx_largeout.ops.padded_rows import padded_rows


@pytest.mark.parametrize("lengths", [[2, 0, 3], [0, 0], [], [1], [0, 4, 0, 0]])
@pytest.mark.parametrize("in_graph", [False, True])
def test_as_ragged_tensors(lengths, in_graph):
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
