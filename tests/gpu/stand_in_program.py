# SPDX-License-Identifier: Apache-2.0
"""The GPU ops beside those of the processor, in a process with a stand-in driver.

LD_LIBRARY_PATH=DRIVER python stand_in_program.py LIBRARY    # of kernels that run on the processor
"""

from __future__ import annotations

import sys

import numpy as np
import tensorflow as tf

from tfx_largeout.ops import library

CLASSES, WIDTH, BATCH = 5000, 4, 6
RNG = np.random.default_rng(0)


def whole_numbers(*shape):
    """Their products are exact whatever the order of sums."""
    return RNG.integers(-3, 4, shape).astype("float32")


HIDDEN, KERNEL, BIAS = (
    whole_numbers(BATCH, WIDTH),
    whole_numbers(CLASSES, WIDTH),
    whole_numbers(CLASSES),
)
LABELS = RNG.integers(-1, CLASSES, (BATCH, 2))


def streamed_logits(module, device, kernel, k=7):
    with tf.device("CPU:0"):
        shard = [tf.constant(x, tf.int64) for x in (0, 1, CLASSES)]
    with tf.device(device):
        arguments = [tf.constant(x) for x in (BIAS, LABELS, np.zeros([0, 0], "float32"))]
        if isinstance(kernel, tf.Variable):
            op, kernel = module.tfx_resource_streamed_logits, kernel.handle
        else:
            op = module.tfx_streamed_logits
        return op(tf.constant(HIDDEN), kernel, *arguments, *shard, k=k)


def check_streamed_logits(module):
    with tf.device("GPU:0"):
        variable = tf.Variable(KERNEL)
        tensor = tf.constant(KERNEL)
    with tf.device("CPU:0"):
        expected = streamed_logits(module, "CPU:0", tf.constant(KERNEL))
    in_graph = tf.function(lambda: streamed_logits(module, "GPU:0", variable))
    for found in (
        streamed_logits(module, "GPU:0", tensor),
        streamed_logits(module, "GPU:0", variable),
        in_graph(),
    ):
        for ours, theirs in zip(found, expected, strict=True):
            assert "GPU:0" in ours.device, ours.device
            np.testing.assert_allclose(ours.numpy(), theirs.numpy(), rtol=1e-6)
        np.testing.assert_array_equal(found[2].numpy(), expected[2].numpy())
        np.testing.assert_array_equal(found[4].numpy(), expected[4].numpy())
    check_refusals(module, variable)


def check_refusals(module, variable):
    for k, message in (
        (2000, "k must be at most 1024 on a GPU; got 2000"),
        (CLASSES + 1, "k must be"),
    ):
        try:
            streamed_logits(module, "GPU:0", variable, k)
        except tf.errors.InvalidArgumentError as error:
            assert message in str(error), error
        else:
            raise AssertionError(f"k = {k} was not refused")
    # The variable is unlocked again.
    streamed_logits(module, "GPU:0", variable)


if __name__ == "__main__":
    assert tf.config.list_physical_devices("GPU"), "no GPU"
    ops = library.load()
    tf.load_library(sys.argv[1])
    check_streamed_logits(ops)
    print("GPU ops agree with those of the processor")
