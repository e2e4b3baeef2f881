# SPDX-License-Identifier: Apache-2.0
"""The GPU ops compared with the processor's, in a process with a stand-in driver.

LD_LIBRARY_PATH=DRIVER python stand_in_program.py LIBRARY    # of kernels that run on the processor
"""

from __future__ import annotations

import os
import sys

import numpy as np
import pytest
import tensorflow as tf
from stand_in_softmax import check_softmax, check_softmax_in_python

from tfx_largeout.ops import library
from tfx_largeout.ops.candidates.candidate_logits import candidate_logits
from tfx_largeout.ops.candidates.candidate_update import candidate_update
from tfx_largeout.ops.rows.row_rule import RowRule, numbers_of

CLASSES, WIDTH, BATCH = 5000, 4, 6
RNG = np.random.default_rng(0)


def whole_numbers(*shape):
    """Their products are exact in any order of sums."""
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
        bias = BIAS.astype(kernel.dtype.as_numpy_dtype)
        arguments = [tf.constant(x) for x in (bias, LABELS, np.zeros([0, 0], "float32"))]
        if isinstance(kernel, tf.Variable):
            op, kernel = module.tfx_resource_streamed_logits, kernel.handle
        else:
            op = module.tfx_streamed_logits
        return op(tf.constant(HIDDEN), kernel, *arguments, *shard, k=k)


def check_streamed_logits(module):
    with tf.device("GPU:0"):
        variable = tf.Variable(KERNEL)
        of_halves = tf.Variable(KERNEL.astype(tf.bfloat16.as_numpy_dtype))  # which are as exact
        tensor = tf.constant(KERNEL)
    with tf.device("CPU:0"):
        expected = streamed_logits(module, "CPU:0", tf.constant(KERNEL))
    in_graph = tf.function(lambda: streamed_logits(module, "GPU:0", variable))
    for found in (
        streamed_logits(module, "GPU:0", tensor),
        streamed_logits(module, "GPU:0", variable),
        streamed_logits(module, "GPU:0", of_halves),
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


RULES = (
    RowRule("sgd", (0.0, 0.0)),
    RowRule("sgd", (0.5, 1.0), weight_decay=0.25),
    RowRule("adagrad", (1e-3,), row_clip_norm=2.0),
    RowRule("adam", (0.9, 0.999, 1e-4)),
)
RATE = np.float32(0.5)
IDS = {False: RNG.integers(-1, 30, [40]), True: RNG.integers(-1, 30, [BATCH, 40])}
SOME_LABELS = RNG.integers(-1, 30, [BATCH, 2])
GRADIENTS = whole_numbers(BATCH, 2), whole_numbers(BATCH, 40)


class Layer:
    """A layer in variables on a device: W, b and their slots."""

    def __init__(self, device, rule, dtype=tf.float32):
        self.rule, self.dtype = rule, dtype
        with tf.device(device):
            self.weights = [tf.Variable(w.astype(dtype.as_numpy_dtype)) for w in (KERNEL, BIAS)]
            self.slots = [
                [
                    tf.Variable(
                        np.zeros(CLASSES, "uint32") if name == "age" else np.full_like(weight, 0.5)
                    )
                    for name in rule.slots
                ]
                for weight in (KERNEL, BIAS)
            ]

    def step(self, module, device, own):
        """Takes a step by the ops themselves. Returns their results."""
        with tf.device(device):
            batch = [tf.constant(x) for x in (HIDDEN, SOME_LABELS, IDS[own])]
            gradients = [tf.constant(x) for x in GRADIENTS]
            kernel, *bias = (weight.handle for weight in self.weights)
            slots = [[slot.handle for slot in slots] for slots in self.slots]
            logits = module.tfx_candidate_logits(kernel, bias, *batch, dtype=self.dtype)
            with tf.control_dependencies(logits):
                hidden_gradient = module.tfx_candidate_update(
                    *(kernel, bias, *slots, *batch, *gradients),
                    *(tf.constant(RATE), numbers_of(self.rule)),
                    method=self.rule.method,
                    dtype=self.dtype,
                )
            return [*logits, hidden_gradient]

    def arrays(self):
        weights = [w.numpy().astype("float32") for w in self.weights]
        return [*weights, *(x.numpy() for x in (*self.slots[0], *self.slots[1]))]


def check_same(found, expected, rtol=2e-6):
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=rtol, atol=10 * rtol)


def check_candidates(module):
    for rule in RULES:
        for own in (False, True):
            gpu, processor = Layer("GPU:0", rule), Layer("CPU:0", rule)
            in_graph = tf.function(gpu.step)
            before = gpu.weights[0].value()  # which shares the variable's buffer
            for step in (gpu.step, in_graph, gpu.step):
                found = step(module, "GPU:0", own)
                assert all("GPU:0" in x.device for x in found)
                expected = processor.step(module, "CPU:0", own)
                check_same([x.numpy() for x in found], [x.numpy() for x in expected])
                check_same(gpu.arrays(), processor.arrays())
            assert np.any(gpu.arrays()[0] != KERNEL)
            np.testing.assert_array_equal(before.numpy(), KERNEL)


def check_candidates_in_bfloat16(module):
    """One step from integers: logits and weights equal the processor's, bit for bit."""
    for rule in RULES:
        for own in (False, True):
            gpu, processor = (Layer(device, rule, tf.bfloat16) for device in ("GPU:0", "CPU:0"))
            found = gpu.step(module, "GPU:0", own)
            assert all("GPU:0" in x.device for x in found)
            expected = processor.step(module, "CPU:0", own)
            check_same([x.numpy() for x in found], [x.numpy() for x in expected], rtol=0)
            check_same(gpu.arrays(), processor.arrays(), rtol=0)
            assert np.any(gpu.arrays()[0] != KERNEL)


def check_refusals_of_candidates(module, gpu, batch, gradients):
    """Faults of ids and numbers are an error of the next op, and the step changes nothing."""
    first = (0, int(np.flatnonzero(SOME_LABELS[0] >= 0)[0]))
    label, nan, infinite = SOME_LABELS.copy(), HIDDEN.copy(), GRADIENTS[0].copy()
    label[3, 1], nan[2, 1], infinite[first] = -2, np.nan, np.inf
    candidate = tf.constant([*IDS[False][1:], CLASSES], tf.int64)
    padding = GRADIENTS[1].copy()
    padding[:, IDS[False] < 0] = np.nan  # never read

    def step(hidden, labels, candidates, true_gradient, gradient, rate=RATE):
        arguments = *gpu.slots, hidden, labels, candidates, true_gradient, gradient
        return candidate_update(*gpu.weights, *arguments, gpu.rule, rate)

    def logits(*given):
        return candidate_logits(*gpu.weights, *given).candidate_logits

    ids = rf"must be class ids in \[-1, {CLASSES}\); got"
    for call, arguments, message in (
        (logits, (*batch[:2], candidate), rf"candidates {ids} {CLASSES} at position \[39\]"),
        (logits, (batch[0], label, batch[2]), rf"labels {ids} -2 at position \[3, 1\]"),
        (logits, (nan, *batch[1:]), r"hidden must be finite; got nan at position \[2, 1\]"),
        (step, (*batch[:2], candidate, *gradients), rf"candidates {ids} {CLASSES}"),
        (step, (batch[0], label, batch[2], *gradients), rf"labels {ids} -2 at position \[3, 1\]"),
        (step, (nan, *batch[1:], *gradients), r"hidden must be finite"),
        (step, (*batch, infinite, padding), rf"true_gradient .* got inf at .* \[0, {first[1]}\]"),
        (step, (*batch, gradients[0], np.nan + gradients[1]), "candidate_gradient must be finite"),
        (step, (*batch, *gradients, -1.0), "learning_rate must be finite, at least 0, .*; got -1"),
    ):
        before = gpu.arrays()
        for run in (call, tf.function(call)):
            found = run(*(tf.convert_to_tensor(x) for x in arguments))
            assert call is logits or not np.any(found.numpy())
            with pytest.raises(tf.errors.InvalidArgumentError, match=message) as error:
                logits(*batch)
            assert "it took no step" in str(error.value)
            logits(*batch)  # it is forgotten
        check_same(gpu.arrays(), before, rtol=0)
    logits(*batch[:2], candidate)
    with pytest.raises(tf.errors.InvalidArgumentError, match="candidates must be"):
        streamed_logits(module, "GPU:0", gpu.weights[0])


def check_options(module):
    """The kernels support no options of a rule, and raise an error with its name."""
    adagrad, nesterov = RULES[2], RULES[1]
    for rule, name in (
        (adagrad._replace(row_wise=True), "row-wise slots"),
        (nesterov._replace(moment_dtype="bfloat16"), "moments in bfloat16"),
        (adagrad._replace(rounding="stochastic"), "stochastic rounding"),
        (adagrad._replace(rounding="compensated"), "compensation"),
    ):
        gpu = Layer("GPU:0", rule, tf.bfloat16)
        before = gpu.arrays()
        with pytest.raises(tf.errors.InvalidArgumentError, match=f"have no {name} on a GPU"):
            gpu.step(module, "GPU:0", False)
        check_same(gpu.arrays(), before, rtol=0)


def check_candidates_in_python(module, dtype):
    """The functions choose the kernels, and raise errors for unsupported cases."""
    rule = RULES[3]
    gpu, processor = Layer("GPU:0", rule, dtype), Layer("CPU:0", rule, dtype)
    processor.step(module, "CPU:0", False)
    with tf.device("CPU:0"):  # where TensorFlow's own ops do something
        batch = [tf.constant(x) for x in (HIDDEN, SOME_LABELS, IDS[False])]
        gradients = [tf.constant(x) for x in GRADIENTS]
        check_refusals_of_candidates(module, gpu, batch, gradients)
        check_same(gpu.arrays(), Layer("CPU:0", rule, dtype).arrays())
        logits = candidate_logits(*gpu.weights, *batch)
        update = candidate_update(*gpu.weights, *gpu.slots, *batch, *gradients, rule, RATE)
    assert "GPU:0" in logits.candidate_logits.device and "GPU:0" in update.device
    check_same(gpu.arrays(), processor.arrays())


if __name__ == "__main__":
    assert tf.config.list_physical_devices("GPU"), "no GPU"
    ops = library.load()
    tf.load_library(sys.argv[1])
    tf.config.experimental.enable_tensor_float_32_execution(False)
    check_streamed_logits(ops)
    check_softmax(ops)
    check_candidates(ops)
    check_candidates_in_bfloat16(ops)
    check_options(ops)
    os.environ["TFX_LARGEOUT_GPU_KERNELS"] = sys.argv[1]
    for dtype in (tf.float32, tf.bfloat16):
        check_candidates_in_python(ops, dtype)
    check_softmax_in_python(ops)
    print("GPU ops agree with those of the processor")
