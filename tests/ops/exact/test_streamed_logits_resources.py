# SPDX-License-Identifier: Apache-2.0
"""Threads and memory of streamed_logits, each measured in a separate process."""

from __future__ import annotations

import sys

import pytest
from child import run_program
from ops.streamed_logits_cases import use

pytestmark = pytest.mark.cpu

OUTPUTS_WITH_THREADS = """
import hashlib, sys
import numpy as np, tensorflow as tf
tf.config.threading.set_intra_op_parallelism_threads(int(sys.argv[1]))
from tfx_largeout.ops.exact.streamed_logits import streamed_logits
rng = np.random.default_rng(0)
hidden, kernel = rng.normal(size=(50, 24)), rng.normal(size=(30_011, 24)).astype(np.float32)
labels = rng.integers(-1, 30_011, (50, 3))
for _ in range(3):
    result = streamed_logits(hidden, kernel, None, labels, 20, implementation="op")
    print(hashlib.sha256(b"".join(np.asarray(x).tobytes() for x in result)).hexdigest())
"""

# Resident memory, in MiB, that a call adds at its peak. The variable is scattered into first, so
# that reading it as a tensor would copy it.
PEAK_OF_CALL = """
import sys
import tensorflow as tf
from tfx_largeout.ops.exact.streamed_logits import streamed_logits

def status(key):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith(key)) / 1024

kernel, bias = tf.Variable(tf.ones([300_000, 64])), tf.Variable(tf.ones([300_000]))
kernel.scatter_nd_update([[5]], tf.zeros([1, 64]))
hidden = tf.ones([256, 64])
labels = tf.ones([256, 2], tf.int64)

@tf.function
def call(kernel, bias):
    return streamed_logits(hidden, kernel, bias, labels, 5, implementation=sys.argv[1])

call(tf.Variable(tf.ones([1000, 64])), tf.Variable(tf.ones([1000])))
call.get_concrete_function(kernel, bias)
with open("/proc/self/clear_refs", "w") as file:
    file.write("5")  # the peak starts again from here
before = status("VmRSS")
call(kernel, bias)
print(status("VmHWM") - before)
"""


@pytest.mark.thorough
def test_the_result_does_not_depend_on_threads(monkeypatch, tmp_path):
    use("baseline", monkeypatch)
    monkeypatch.delenv("TFX_LARGEOUT_ISA")
    outputs = [text for n in "12" for text in run_program(tmp_path, OUTPUTS_WITH_THREADS, n)]
    assert len(outputs) == 6
    assert len(set(outputs)) == 1


@pytest.mark.thorough
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("name", ["baseline", "composed"])
def test_memory_is_bounded(name, monkeypatch, tmp_path):
    """The logits alone would be 293 MiB, a copy of the kernel 73 MiB."""
    implementation = use(name, monkeypatch)
    assert float(run_program(tmp_path, PEAK_OF_CALL, implementation)[0]) < 64
