# SPDX-License-Identifier: Apache-2.0
"""The training pass over all classes on the GPU and on the processor, for stand_in_program."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tfx_largeout.ops.exact.softmax_selection import softmax_selection
from tfx_largeout.ops.exact.softmax_update import softmax_update
from tfx_largeout.ops.rows.row_rule import RowRule

CLASSES, WIDTH, BATCH = 4100, 3, 5
METHODS = {
    "sgd": (0, [0.0, np.inf, 0.0, 0.0]),
    "adagrad": (1, [0.01, 0.5, 1e-3]),
    "adam": (3, [0.01, 0.5, 0.9, 0.99, 1e-3]),
}


class Step:
    """The inputs of `TfxSoftmaxUpdate`, and its variables on a device."""

    def __init__(self, device, method, dtype="float32", has_bias=True):
        rng = np.random.default_rng(2)
        self.device, self.method, self.dtype = device, method, dtype
        num_slots, self.rule = METHODS[method]
        as_numpy = tf.as_dtype(dtype).as_numpy_dtype  # to cast is up to the device, which does not
        self.variables, self.slots = [], []
        with tf.device(device):
            for shape in [(CLASSES, WIDTH), (CLASSES,)][: 1 + has_bias]:
                self.variables.append(tf.Variable(rng.normal(size=shape).astype(as_numpy)))
                slots = [tf.Variable(np.full(shape, 0.5, "float32")) for _ in range(num_slots)][:2]
                if method == "adam":
                    slots.append(tf.Variable(np.full([CLASSES], 4, "uint32")))
                self.slots.append(slots)
        self.hidden = rng.normal(size=(BATCH, WIDTH)).astype("float32")
        self.labels = rng.integers(-1, CLASSES, (BATCH, 2))
        self.gradients = rng.normal(size=(BATCH, 2)), rng.normal(size=BATCH), rng.normal(size=BATCH)

    def run(self, module, products="float32", update=True, labels=None, slots=None):
        target, log_z, mean = (tf.constant(x.astype("float32")) for x in self.gradients)
        with tf.device("CPU:0"):
            rule = tf.constant(self.rule, tf.float64)
        with tf.device(self.device):
            slots = self.slots if slots is None else slots
            return module.tfx_softmax_update(
                kernel=self.variables[0].handle,
                bias=[x.handle for x in self.variables[1:]],
                kernel_slots=[x.handle for x in slots[0]],
                bias_slots=[x.handle for of_bias in slots[1:] for x in of_bias],
                hidden=tf.constant(self.hidden),
                labels=tf.constant(self.labels if labels is None else labels),
                logsumexp=tf.constant(np.full([BATCH], 9, "float32")),
                target_gradient=target,
                logsumexp_gradient=log_z,
                mean_gradient=mean,
                learning_rate=tf.constant(0.1),
                rule=rule,
                method=self.method,
                products=products,
                update=update,
                dtype=self.dtype,
            )

    def values(self):
        every = [*self.variables, *(slot for slots in self.slots for slot in slots)]
        return [x.numpy().astype("float64") for x in every]


def check_softmax(module):
    check_update(module)
    check_in_graph(module)
    check_tf32(module)
    check_refusals(module)
    check_selection(module)


def check_update(module):
    for method, options, products in (
        ("sgd", {}, "float32"),
        ("sgd", {"dtype": "bfloat16"}, "bfloat16"),
        ("adagrad", {"has_bias": False}, "bfloat16"),
        ("adam", {"dtype": "bfloat16"}, "float32"),
        ("adam", {}, "float32"),
    ):
        gpu, cpu = Step("GPU:0", method, **options), Step("CPU:0", method, **options)
        before = gpu.variables[0].read_value()  # must not change
        expected, found = cpu.run(module, products), gpu.run(module, products)
        assert "GPU:0" in found.device, found.device
        close = {"rtol": 1e-4, "atol": 1e-4} if products == "float32" else {"atol": 3e-2}
        np.testing.assert_allclose(found.numpy(), expected.numpy(), **close)
        of_weights = {"rtol": 1e-2, "atol": 3e-2} if options.get("dtype") else close
        for ours, theirs in zip(gpu.values(), cpu.values(), strict=True):
            np.testing.assert_allclose(ours, theirs, **of_weights)
        start = Step("CPU:0", method, **options).variables[0]
        np.testing.assert_array_equal(before.numpy(), start.numpy())


def check_in_graph(module):
    gpu, cpu = Step("GPU:0", "adam"), Step("CPU:0", "adam")
    step = tf.function(lambda: gpu.run(module))
    for _ in range(2):
        expected, found = cpu.run(module), step()
        np.testing.assert_allclose(found.numpy(), expected.numpy(), rtol=1e-4, atol=1e-4)
    for ours, theirs in zip(gpu.values(), cpu.values(), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)
    values = gpu.values()
    gpu.run(module, update=False)
    for before, after in zip(values, gpu.values(), strict=True):
        np.testing.assert_array_equal(before, after)


def check_tf32(module):
    """Factors are rounded only if the process has TF32 switched on."""
    exact = Step("GPU:0", "sgd").run(module, update=False).numpy()
    tf.config.experimental.enable_tensor_float_32_execution(True)
    rounded = Step("GPU:0", "sgd").run(module, update=False).numpy()
    tf.config.experimental.enable_tensor_float_32_execution(False)
    error = np.abs(rounded - exact).max() / np.abs(exact).max()
    assert 1e-5 < error < 1e-2, error
    np.testing.assert_array_equal(Step("GPU:0", "sgd").run(module, update=False).numpy(), exact)


def whole_numbers(*shape):
    return np.random.default_rng(4).integers(-3, 4, shape).astype("float32")


def select(module, device, num_selected, dtype="float32", products="float32"):
    as_numpy = tf.as_dtype(dtype).as_numpy_dtype
    with tf.device("CPU:0"):
        shard = [tf.constant(x, tf.int64) for x in (1, 2, 2 * CLASSES)]
    with tf.device(device):
        kernel = tf.Variable(whole_numbers(CLASSES, WIDTH).astype(as_numpy))
        bias = tf.Variable(whole_numbers(CLASSES).astype(as_numpy))
        labels = np.random.default_rng(5).integers(-1, 2 * CLASSES, (BATCH, 3))
        arguments = [tf.constant(x) for x in (whole_numbers(BATCH, WIDTH), labels)]
        seed = tf.constant(np.array([3, -4]))

        @tf.function
        def run():
            return module.tfx_softmax_selection(
                kernel.handle,
                [bias.handle],
                *(*arguments, seed, *shard),
                num_selected=num_selected,
                products=products,
                dtype=dtype,
            )

        return run.python_function(), run()


def check_selection(module):
    for options in (
        (50,),
        (2 * CLASSES,),
        (0,),
        (50, "bfloat16"),
        (50, "bfloat16", "bfloat16"),
        (50, "float32", "bfloat16"),
    ):
        expected, _ = select(module, "CPU:0", *options)
        for found in select(module, "GPU:0", *options):
            for name, theirs in expected._asdict().items():
                ours = getattr(found, name)
                assert "GPU:0" in ours.device, ours.device
                exact = name in ("ids", "target_logits", "logits")
                close = {"rtol": 0} if exact else {"rtol": 1e-5, "atol": 1e-6}
                np.testing.assert_allclose(ours.numpy(), theirs.numpy(), **close)
        assert (expected.ids.shape[1] > 0) == (options[0] > 0)


def check_softmax_in_python(module):
    """The functions choose the kernels, and raise errors for unsupported cases."""
    rule = RowRule("adam", (0.9, 0.99, 1e-3), 0.01, 0.5)
    gpu, cpu = Step("GPU:0", "adam"), Step("CPU:0", "adam")
    cpu.run(module)
    values = gpu.values()
    with tf.device("CPU:0"):  # where TensorFlow's own ops do something
        log_z = tf.constant(np.full([BATCH], 9, "float32"))
        seed = tf.constant(np.array([3, 4]))
        of_target, of_log_z, of_mean = (tf.constant(x.astype("float32")) for x in gpu.gradients)

        def update(labels=gpu.labels, rate=0.1, of_log_z=of_log_z):
            batch = tf.constant(gpu.hidden), tf.constant(labels), log_z
            gradients = of_target, of_log_z
            layer = *gpu.variables, *gpu.slots
            return softmax_update(*layer, *batch, *gradients, rule, rate, mean_gradient=of_mean)

        def selection(labels=gpu.labels):
            batch = tf.constant(gpu.hidden), tf.constant(labels)
            return softmax_selection(*gpu.variables, *batch, 50, seed)

        wrong = np.full_like(gpu.labels, CLASSES)
        for call in (
            lambda: update(wrong),
            lambda: update(rate=-1.0),
            lambda: update(of_log_z=tf.constant(np.full([BATCH], np.nan, "float32"))),
            lambda: selection(wrong),
        ):
            with pytest.raises(tf.errors.InvalidArgumentError, match="must be"):
                call()
        for before, after in zip(values, gpu.values(), strict=True):
            np.testing.assert_array_equal(before, after)
        assert "GPU:0" in selection().ids.device
        assert "GPU:0" in update().device
    for ours, theirs in zip(gpu.values(), cpu.values(), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)


def check_refusals(module):
    gpu = Step("GPU:0", "adam")
    values = gpu.values()
    for change, message in (
        ({"slots": [gpu.slots[0][:1], gpu.slots[1]]}, "slots of kernel must be 3 variables; got 1"),
        ({"labels": np.zeros([BATCH + 1, 2], "int64")}, "labels must be [N, K] with the N of"),
    ):
        try:
            gpu.run(module, **change)
        except tf.errors.InvalidArgumentError as error:
            assert message in str(error), error
        else:
            raise AssertionError(f"{message} was not raised")
    for before, after in zip(values, gpu.values(), strict=True):
        np.testing.assert_array_equal(before, after)
    gpu.run(module)  # the variables are unlocked again
