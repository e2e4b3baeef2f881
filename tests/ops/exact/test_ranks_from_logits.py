# SPDX-License-Identifier: Apache-2.0
"""ranks_from_logits against the float64 oracle."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from ops.streamed_logits_cases import integers, random_labels
from oracles import streamed_logits as oracle

from tfx_largeout.ops.exact.ranks_from_logits import ranks_from_logits


@pytest.mark.parametrize("shape", [(1, 1, 1), (7, 123, 5), (33, 1009, 1), (4, 9, 0), (0, 5, 2)])
def test_ranks(shape):
    batch, num_classes, num_labels = shape
    rng = np.random.default_rng(0)
    logits = integers(rng, batch, num_classes)
    labels = random_labels(rng, batch, num_labels, num_classes)
    expected = oracle.statistics(logits, labels, 0).target_ranks
    np.testing.assert_array_equal(ranks_from_logits(logits, labels), expected)


def test_nan_counts_as_minus_infinity():
    logits = np.array([[np.nan, 1.0, -np.inf, np.nan, np.inf]], np.float32)
    labels = np.array([[0, 1, 2, 3, 4]])
    np.testing.assert_array_equal(ranks_from_logits(logits, labels), [[2, 1, 3, 4, 0]])


def test_shapes_unknown_in_a_graph():
    call = tf.function(
        ranks_from_logits,
        input_signature=[tf.TensorSpec([None, None]), tf.TensorSpec([None, None], tf.int64)],
    )
    np.testing.assert_array_equal(call([[1.0, 3.0, 2.0]], [[2, 0, -1]]), [[1, 2, -1]])
    assert call([[1.0, 3.0]], np.zeros((1, 0), np.int64)).shape == (1, 0)


def test_a_label_out_of_range():
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"labels must be class ids"):
        ranks_from_logits([[1.0, 2.0]], [[2]])
