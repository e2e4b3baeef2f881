# SPDX-License-Identifier: Apache-2.0
"""Threads, memory and aliasing of the factored ops, each measured in a separate process."""

from __future__ import annotations

import sys

import pytest
from child import run_program
from ops.streamed_logits_cases import use

pytestmark = pytest.mark.cpu

PREAMBLE = """
import sys
import numpy as np, tensorflow as tf
from tfx_largeout.ops.factored.factored_state import FactoredState
from tfx_largeout.ops.factored import factored_update as ops

def layer(classes, width):  # in NumPy: TensorFlow's sums depend on its threads
    weights = np.random.default_rng(1).normal(0, width**-0.5, (classes, width)).astype(np.float32)
    unit = tf.eye(width)
    return FactoredState(
        v=tf.Variable(weights), u=tf.Variable(unit), u_inverse_transpose=tf.Variable(unit),
        gram=tf.Variable(weights.T @ weights),
        shift=tf.Variable(tf.zeros([width])), row_sum=tf.Variable(weights.sum(axis=0)),
        transitions=tf.Variable(tf.tile(unit[tf.newaxis], [8, 1, 1])),
        row_slot=tf.Variable(tf.zeros([classes], tf.uint8)),
        slot_rows=tf.Variable(tf.constant([classes] + [0] * 7, tf.int64)),
        current_slot=tf.Variable(0, dtype=tf.int64))

def step(state, hidden, labels, implementation, max_condition=ops.MAX_CONDITION):
    a = ops.factored_statistics(state, hidden, labels, implementation=implementation)
    batch = hidden.shape[0]
    gradients = tf.ones(labels.shape), tf.ones([batch]), tf.ones([batch]) / 100
    rate = tf.constant(0.4 / hidden.shape[0] / hidden.shape[1])
    return ops.factored_update(state, hidden, labels, a.gram_hidden, a.u_hidden, gradients, rate,
                               tf.constant(0.1), max_condition=max_condition,
                               implementation=implementation)
"""

STATE_WITH_THREADS = (
    """
import hashlib
import tensorflow as tf
tf.config.threading.set_intra_op_parallelism_threads(int(__import__("sys").argv[1]))
"""
    + PREAMBLE
    + """
for width, batch in ((150, 100), (90, 200)):
    state = layer(3000, width)
    for seed in range(6):
        hidden = tf.random.stateless_normal([batch, width], [seed, 3])
        labels = tf.random.stateless_uniform([batch, 2], [seed, 4], -1, 3000, tf.int64)
        error = step(state, hidden, labels, "op", 0.0 if seed == 3 else ops.MAX_CONDITION)
    arrays = [error.numpy()] + [variable.numpy() for variable in state]
    print(hashlib.sha256(b"".join(x.tobytes() for x in arrays)).hexdigest())
"""
)

# Resident memory, in MiB, that two steps add at their peak.
PEAK_OF_STEPS = (
    PREAMBLE
    + """
def status(key):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith(key)) / 1024

state, small = layer(300_000, 64), layer(1000, 64)
hidden = tf.ones([256, 64]) / 8
labels = tf.random.stateless_uniform([256, 2], [1, 2], 0, 1000, tf.int64)

@tf.function
def call(*state):
    return step(FactoredState(*state), hidden, labels, sys.argv[1])

call(*small)
call.get_concrete_function(*state)
with open("/proc/self/clear_refs", "w") as file:
    file.write("5")  # the peak starts again from here
before = status("VmRSS")
call(*state)
call(*state)
print(status("VmHWM") - before)
"""
)

# A tensor that was read from V keeps its values, though V is changed in place.
READ_BEFORE_STEP = (
    PREAMBLE
    + """
state = layer(50, 8)
before = [variable.read_value() for variable in state]
copies = [tensor.numpy().copy() for tensor in before]
labels = tf.constant([[1], [2]], tf.int64)
for _ in range(3):
    step(state, tf.ones([2, 8]), labels, "op", max_condition=0.0)
ops.factored_settle(state, implementation="op")
print(all((x.numpy() == y).all() for x, y in zip(before, copies)))
print(any((x.numpy() != y).any() for x, y in zip(state, copies)))
"""
)

# How many small evaluations end while a large one of the same layer runs.
SIDE_BY_SIDE = (
    PREAMBLE
    + """
import threading
state, ended = layer(1000, 256), threading.Event()

def evaluate(hidden, labels):
    ops.factored_statistics(state, hidden, labels, update_rows=False, implementation="op")

def evaluate_many():
    evaluate(*many)
    ended.set()

one, many = ((tf.ones([batch, 256]), tf.zeros([batch, 1], tf.int64)) for batch in (1, 100_000))
evaluate(*one)
large, count = threading.Thread(target=evaluate_many), 0
large.start()
while not ended.is_set():
    evaluate(*one)
    count += 1
large.join()
print(count)
"""
)


@pytest.mark.thorough
def test_the_state_does_not_depend_on_threads(tmp_path, monkeypatch):
    use("baseline", monkeypatch)
    monkeypatch.delenv("TFX_LARGEOUT_ISA")
    assert run_program(tmp_path, STATE_WITH_THREADS, "1") == run_program(
        tmp_path, STATE_WITH_THREADS, "3"
    )


@pytest.mark.thorough
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("name", ["baseline", "composed"])
def test_memory_is_bounded(name, tmp_path, monkeypatch):
    """A copy of V alone would be 73 MiB."""
    implementation = use(name, monkeypatch)
    assert float(run_program(tmp_path, PEAK_OF_STEPS, implementation)[0]) < 48


@pytest.mark.thorough
def test_tensors_read_before_keep_their_values(tmp_path, monkeypatch):
    use("baseline", monkeypatch)
    assert run_program(tmp_path, READ_BEFORE_STEP) == ["True", "True"]


@pytest.mark.thorough
def test_evaluations_do_not_wait_for_each_other(tmp_path, monkeypatch):
    """Where each locks the layer for itself, a few end before the large one has begun."""
    use("baseline", monkeypatch)
    monkeypatch.delenv("TFX_LARGEOUT_ISA")
    assert int(run_program(tmp_path, SIDE_BY_SIDE)[0]) > 500
