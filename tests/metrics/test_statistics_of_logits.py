# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tfx_largeout.metrics.base import statistics_of_logits


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [(tf.bfloat16, tf.float32), (tf.float32, tf.float32), (tf.float64, tf.float64)],
)
def test_fields(dtype, expected):
    logits = np.array([[1.0, 3.0, 3.0, -2.0], [0.0, 0.0, 0.0, 0.0]])
    got = statistics_of_logits([[2, -1], [3, 0]], tf.constant(logits, dtype))
    assert got.log_partition.dtype == got.target_logits.dtype == expected
    np.testing.assert_array_equal(got.labels.ids, [[2, -1], [3, 0]])
    np.testing.assert_array_equal(got.target_logits, [[3, 0], [0, 0]])
    np.testing.assert_array_equal(got.target_ranks, [[1, -1], [3, 0]])
    np.testing.assert_allclose(got.log_partition, np.log(np.exp(logits).sum(1)), rtol=1e-6)


def test_unknown_number_of_classes_is_refused():
    @tf.function(input_signature=[tf.TensorSpec([None, None], tf.float32)])
    def run(logits):
        return statistics_of_logits(tf.constant([0]), logits).log_partition

    with pytest.raises(ValueError, match=r"known C; got shape \(None, None\)"):
        run(tf.zeros([1, 3]))


def test_ids_past_float32():
    num_classes = 2**24 + 4
    logits = tf.tensor_scatter_nd_update(
        tf.zeros([1, num_classes]), [[0, 2**24 + 1], [0, 2**24 + 3]], [2.0, 1.0]
    )
    got = statistics_of_logits(np.array([[2**24 + 1, 2**24 + 3, 2**24 + 2]]), logits)
    np.testing.assert_array_equal(got.target_ranks, [[0, 1, 2**24 + 3]])
