# SPDX-License-Identifier: Apache-2.0
"""Errors of GPU ops if the device fails, in a process with a stand-in driver.

LD_LIBRARY_PATH=DRIVER python stand_in_errors.py LIBRARY    # of kernels that run on the processor
"""

from __future__ import annotations

import ctypes
import os
import sys

import numpy as np
import pytest
import tensorflow as tf

from tfx_largeout.ops import library
from tfx_largeout.ops.candidates.candidate_logits import candidate_logits
from tfx_largeout.ops.candidates.candidate_update import candidate_update
from tfx_largeout.ops.rows.row_rule import RowRule

CLASSES, WIDTH, BATCH = 500, 64, 4
MEGABYTES = 64  # given to TensorFlow
TOO_MANY = 300_000  # candidates: they take 161 MB
RULE = RowRule("adam", (0.9, 0.999, 1e-4))
MEMORY, OLD_DRIVER, ILLEGAL_ADDRESS, NO_IMAGE, NEWER_PTX = 2, 35, 700, 209, 222  # CUDA's numbers
UNCHANGED = "No variable has been changed"
IN_PART = "may have been changed in part"


class Layer:
    """W, b and their slots on the GPU, and a step on them."""

    def __init__(self):
        rng = np.random.default_rng(0)
        with tf.device("GPU:0"):
            self.weights = [
                tf.Variable(rng.normal(size=shape).astype("float32"))
                for shape in ((CLASSES, WIDTH), (CLASSES,))
            ]
            self.slots = [
                [tf.Variable(np.zeros(w.shape, "float32")) for _ in range(2)]
                + [tf.Variable(np.zeros(CLASSES, "uint32"))]
                for w in self.weights
            ]
        self.rng = rng

    def batch(self, num_candidates):
        hidden = self.rng.normal(size=(BATCH, WIDTH)).astype("float32")
        labels = self.rng.integers(0, CLASSES, (BATCH, 1))
        return hidden, labels, self.rng.integers(0, CLASSES, num_candidates)

    def logits(self, num_candidates=30):
        with tf.device("CPU:0"):  # where TensorFlow's own ops do something
            batch = [tf.constant(x) for x in self.batch(num_candidates)]
            return candidate_logits(*self.weights, *batch)

    def step(self, num_candidates=30):
        with tf.device("CPU:0"):
            batch = [tf.constant(x) for x in self.batch(num_candidates)]
            gradients = [
                tf.constant(self.rng.normal(size=(BATCH, n)).astype("float32"))
                for n in (1, num_candidates)
            ]
            return candidate_update(*self.weights, *self.slots, *batch, *gradients, RULE, 0.1)

    def arrays(self):
        return [x.numpy() for x in (*self.weights, *self.slots[0], *self.slots[1])]


def check_unchanged(layer, before):
    for ours, theirs in zip(layer.arrays(), before, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def check_memory_of_tensorflow():
    layer = Layer()
    before = layer.arrays()
    for call in (layer.step, layer.logits, tf.function(layer.step)):
        with pytest.raises(tf.errors.ResourceExhaustedError, match="the GPU must have memory") as e:
            call(TOO_MANY)
        assert UNCHANGED in str(e.value) and "Take fewer examples" in str(e.value)
        assert "OOM when allocating" in str(e.value)  # TensorFlow's own words
        check_unchanged(layer, before)
    layer.step()  # variables are unlocked, and there is memory
    assert np.any(layer.arrays()[0] != before[0])


def check_launches(fail):
    layer = Layer()
    before = layer.arrays()
    for number, driver, error, message in (
        (NO_IMAGE, 13000, tf.errors.FailedPreconditionError, "code for the GPU; got one of comp"),
        (NO_IMAGE, 13000, tf.errors.FailedPreconditionError, "CUDAARCHS=75"),
        (NO_IMAGE, 12040, tf.errors.FailedPreconditionError, "must know CUDA 13"),
        (NEWER_PTX, 12040, tf.errors.FailedPreconditionError, "got one for CUDA 12.4"),
        (OLD_DRIVER, 0, tf.errors.FailedPreconditionError, "got one for CUDA unknown"),
        (OLD_DRIVER, 12040, tf.errors.FailedPreconditionError, "take driver 580 or newer"),
        (MEMORY, 13000, tf.errors.ResourceExhaustedError, "the GPU must have memory"),
    ):
        for call in (layer.step, layer.logits, tf.function(layer.step)):
            fail(number, 0, False, driver)
            with pytest.raises(error, match=message) as e:
                call()
            assert UNCHANGED in str(e.value), e.value
            fail(0, 0, False, 13000)
            check_unchanged(layer, before)
    fail(ILLEGAL_ADDRESS, 0, False, 13000)
    with pytest.raises(tf.errors.InternalError, match="start the process again") as e:
        layer.step()
    assert IN_PART in str(e.value)
    fail(0, 0, False, 13000)
    check_in_the_middle(fail, layer, before)
    layer.step()
    assert np.any(layer.arrays()[0] != before[0])


def check_in_the_middle(fail, layer, before):
    """Up to the launch that increments ages, a failure leaves everything unchanged."""
    for first in range(100):
        fail(MEMORY, first, True, 13000)
        with pytest.raises(tf.errors.ResourceExhaustedError) as e:
            layer.step()
        if IN_PART in str(e.value):
            break
        assert UNCHANGED in str(e.value)
        check_unchanged(layer, before)
    assert 3 < first < 99
    assert "go on from a checkpoint" in str(e.value)
    assert np.any(layer.arrays()[4] != before[4])  # ages
    np.testing.assert_array_equal(layer.arrays()[0], before[0])


if __name__ == "__main__":
    gpu = tf.config.list_physical_devices("GPU")[0]
    limit = tf.config.LogicalDeviceConfiguration(memory_limit=MEGABYTES)
    tf.config.set_logical_device_configuration(gpu, [limit])
    assert library.load() is not None
    os.environ["TFX_LARGEOUT_GPU_KERNELS"] = sys.argv[1]
    assert library.load_gpu_kernels()
    check_launches(ctypes.CDLL(sys.argv[1]).tfx_fail_launches)
    check_memory_of_tensorflow()
    print("GPU ops agree with those of the processor")
