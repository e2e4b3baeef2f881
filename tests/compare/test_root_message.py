# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfx_largeout.compare.root_message import root_message


class Lookup(keras.layers.Layer):
    def call(self, x):
        return tf.gather(x, [[7]])


def in_a_graph():
    model = keras.Sequential([keras.Input([3]), Lookup()])
    model.compile("sgd", loss="mean_squared_error")
    model.fit(np.ones([4, 3]), np.ones([4, 3]), verbose=0)


def in_a_function():
    tf.function(lambda: tf.gather(tf.zeros([4]), [[7]]))()


def in_an_eager_layer():
    Lookup()(tf.zeros([4, 3]))


def eagerly():
    tf.gather(tf.zeros([4]), [[7]])


@pytest.mark.parametrize("fail", [in_a_graph, in_a_function, in_an_eager_layer, eagerly])
def test_errors_of_tensorflow(fail):
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        fail()
    assert root_message(str(caught.value)) == "indices[0,0] = 7 is not in [0, 4)"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("num_sampled must be at most 200; got 5000", "num_sampled must be at most 200; got 5000"),
        ("\n  first\nsecond", "first"),
        ("slice 5 out of bounds. [Op:StridedSlice] name: a/b", "slice 5 out of bounds."),
        (
            "Graph execution error:\n\nDetected at node x defined at (most recent call last):\n"
            "<stack traces unavailable>\n2 root error(s) found.\n  (0) INVALID_ARGUMENT:  bad\n",
            "bad",
        ),
        ("x" * 301, "x" * 297 + "..."),
        ("", "no message"),
    ],
)
def test_other_messages(text, expected):
    assert root_message(text) == expected
