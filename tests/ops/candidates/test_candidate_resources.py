# SPDX-License-Identifier: Apache-2.0
"""Threads, memory and aliasing of the candidate ops, each measured in a separate process."""

from __future__ import annotations

import sys

import pytest
from child import run_program
from ops.candidate_cases import use
from variants import product

pytestmark = pytest.mark.cpu

PREAMBLE = """
import sys
import numpy as np, tensorflow as tf
tf.config.threading.set_intra_op_parallelism_threads(int(sys.argv[1]))
from tfx_largeout.ops.candidates.candidate_logits import candidate_logits
from tfx_largeout.ops.candidates.candidate_update import candidate_update
from tfx_largeout.ops.rows.row_rule import RowRule
from tfx_largeout.ops.rows.row_update import row_update

RULE = RowRule("adam", (0.9, 0.999, 1e-7))

def layer(*shape):
    slots = [tf.Variable(tf.zeros(shape)), tf.Variable(tf.zeros(shape)),
             tf.Variable(tf.zeros(shape[:1], tf.uint32))]
    return [tf.Variable(tf.ones(shape)), *slots]

def batch(seed, classes, width, examples, num_candidates, own):
    rng = np.random.default_rng(seed)
    hidden = tf.constant(rng.normal(size=(examples, width)), tf.float32)
    labels = tf.constant(rng.integers(-1, classes, (examples, 2)))
    shape = (examples, num_candidates) if own else (num_candidates,)
    candidates = tf.constant(rng.integers(-1, classes, shape))
    gradients = [tf.constant(rng.normal(size=(examples, n)), tf.float32)
                 for n in (2, num_candidates)]
    return hidden, labels, candidates, gradients

def step(kernel, bias, batch, implementation="op"):
    *inputs, gradients = batch
    logits = candidate_logits(kernel[0], bias[0], *inputs, implementation=implementation)
    gradient = candidate_update(kernel[0], bias[0], kernel[1:], bias[1:], *inputs, *gradients,
                                RULE, 0.1, implementation=implementation)
    return *logits, gradient
"""

STATE_WITH_THREADS = (
    PREAMBLE
    + """
import hashlib
for own in (False, True):
    for classes in (300, 50_000):
        kernel, bias = layer(classes, 50), layer(classes)
        outputs = []
        for seed in range(4):
            outputs += step(kernel, bias, batch(seed, classes, 50, 70, 200, own))
        ids = tf.range(0, classes, 3, tf.int64)
        rows = tf.cast(ids % 7, tf.float32)[:, tf.newaxis] * tf.ones([1, 50])
        row_update(kernel[0], kernel[1:], ids, rows, RULE, 0.1, implementation="op")
        arrays = [x.numpy() for x in (*outputs, *kernel, *bias)]
        print(hashlib.sha256(b"".join(x.tobytes() for x in arrays)).hexdigest())
"""
)

# Resident memory, in MiB, that steps add at their peak, after one on a small layer.
PEAK_OF_STEPS = (
    PREAMBLE
    + """
def status(key):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith(key)) / 1024

own = sys.argv[3] == "own"
large, small = [[layer(classes, 64), layer(classes)] for classes in (400_000, 1000)]
examples = batch(0, 1000, 64, 64, 500, own)

@tf.function
def call(kernel, bias):
    return step(kernel, bias, examples, sys.argv[2])

for variable in large[0]:  # as some earlier step would have
    tf.raw_ops.ResourceScatterUpdate(
        resource=variable.handle, indices=[1], updates=variable.sparse_read([1]))
call(*small)
call.get_concrete_function(*large)
with open("/proc/self/clear_refs", "w") as file:
    file.write("5")  # the peak starts again from here
before = status("VmRSS")
call(*large)
call(*large)
print(status("VmHWM") - before)
"""
)

# A tensor that was read from a variable keeps its values, though the variable is changed in place.
READ_BEFORE_STEP = (
    PREAMBLE
    + """
for own in (False, True):
    kernel, bias = layer(50, 8), layer(50)
    before = [variable.read_value() for variable in (*kernel, *bias)]
    copies = [tensor.numpy().copy() for tensor in before]
    for seed in range(3):
        step(kernel, bias, batch(seed, 50, 8, 4, 20, own))
    ids = tf.constant([3], tf.int64)
    row_update(kernel[0], kernel[1:], ids, tf.ones([1, 8]), RULE, 0.1, implementation="op")
    print(all((x.numpy() == y).all() for x, y in zip(before, copies)))
    print(all((x.numpy() != y).any() for x, y in zip((*kernel, *bias), copies)))
"""
)


@pytest.mark.thorough
def test_the_result_does_not_depend_on_threads(tmp_path, monkeypatch):
    use("baseline", monkeypatch)
    monkeypatch.delenv("TFX_LARGEOUT_ISA")
    alone = run_program(tmp_path, STATE_WITH_THREADS, "1")
    assert len(alone) == 4
    assert run_program(tmp_path, STATE_WITH_THREADS, "3") == alone


@pytest.mark.thorough
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(("own", "name"), product(["own", "shared"], ["baseline", "composed"]))
def test_memory_is_bounded(name, own, tmp_path, monkeypatch):
    """A copy of W alone would be 98 MiB."""
    implementation = use(name, monkeypatch)
    assert float(run_program(tmp_path, PEAK_OF_STEPS, "2", implementation, own)[0]) < 48


@pytest.mark.thorough
def test_tensors_read_before_keep_their_values(tmp_path, monkeypatch):
    use("baseline", monkeypatch)
    assert run_program(tmp_path, READ_BEFORE_STEP, "2") == ["True"] * 4


ORDER_OF_LOCKS = (
    PREAMBLE
    + """
import threading
one, other = layer(50, 8), layer(50, 8)
ids, rows = tf.constant([3], tf.int64), tf.ones([1, 8])

def work(first, second):
    rule = RowRule("sgd", (0.5, 0.0))
    for _ in range(500):
        row_update(first, [second], ids, rows, rule, 0.1, implementation="op")

threads = [threading.Thread(target=work, args=pair)
           for pair in ((one[0], one[1]), (one[1], one[0])) * 2]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join(60)
print(any(thread.is_alive() for thread in threads))
"""
)


@pytest.mark.thorough
def test_ops_that_lock_the_same_variables_don_t_wait_for_each_other(tmp_path, monkeypatch):
    use("baseline", monkeypatch)
    assert run_program(tmp_path, ORDER_OF_LOCKS, "2") == ["False"]
