# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tfx_largeout.example_weights import example_weights


def test_ones_without_weights():
    got = example_weights(tf.zeros([2, 3, 5]), None, None)
    assert got.dtype == tf.float64
    np.testing.assert_array_equal(got, np.ones(6))


def test_broadcasts_from_the_left():
    batch = tf.zeros([2, 2, 5])
    np.testing.assert_array_equal(example_weights(batch, [3.0, 4.0], None), [3, 3, 4, 4])
    np.testing.assert_array_equal(example_weights(batch, 2.0, None), [2, 2, 2, 2])


def test_weights_times_mask():
    batch = tf.zeros([3, 5])
    got = example_weights(batch, np.array([1, 2, 3]), np.array([True, False, True]))
    np.testing.assert_array_equal(got, [1, 0, 3])


def test_one_example_does_not_grow():
    with pytest.raises(ValueError, match=r"batch shape \(1,\) of y_pred; got shape \(3,\)"):
        example_weights(tf.zeros([1, 5]), [1.0, 2.0, 3.0], None)


def test_shapes_known_only_at_run_time():
    @tf.function(input_signature=[tf.TensorSpec([None, 5]), tf.TensorSpec([None])])
    def weights(batch, sample_weight):
        return example_weights(batch, sample_weight, None)

    np.testing.assert_array_equal(weights(tf.zeros([2, 5]), [3.0, 4.0]), [3, 4])
    with pytest.raises(tf.errors.InvalidArgumentError):
        weights(tf.zeros([1, 5]), [1.0, 2.0, 3.0])


@pytest.mark.parametrize("name", ["sample_weight", "mask"])
@pytest.mark.parametrize(
    ("shape", "batch"), [((3, 4), (3,)), ((4,), (3,)), ((3, 4), (3, 2)), ((2,), (3, 2))]
)
def test_shapes_that_do_not_broadcast_from_the_left(name, shape, batch):
    arguments = {"sample_weight": None, "mask": None, name: np.ones(shape)}
    with pytest.raises(ValueError) as caught:
        example_weights(tf.zeros([*batch, 5]), **arguments)
    message = f"{name} must broadcast from the left to the batch shape {batch} of y_pred; "
    assert str(caught.value) == f"{message}got shape {shape}"
