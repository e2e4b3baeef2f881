# SPDX-License-Identifier: Apache-2.0
"""Threads and aliasing of the ops of the hash index, each in a separate process."""

from __future__ import annotations

import pytest
from child import run_program
from ops.hash_index_cases import use

pytestmark = pytest.mark.cpu

PREAMBLE = """
import sys
import numpy as np, tensorflow as tf
tf.config.threading.set_intra_op_parallelism_threads(int(sys.argv[1]))
from tfx_largeout.indexes import DWTAHash, HashIndex, SimHash, WTAHash

rng = np.random.default_rng(0)
kernel = tf.Variable(rng.normal(size=(5000, 40)), dtype=tf.float32)
queries = tf.constant(rng.normal(size=(200, 2, 40)), tf.float32)

def indexes():
    for family in (WTAHash(4), DWTAHash(4), SimHash()):
        index = HashIndex(family, 5, 9, first_period=3)
        index.rebuild(kernel)
        yield index

def steps(index):
    for step in range(4):
        ids = tf.constant(rng.integers(0, 5000, 300))
        rows = tf.constant(rng.normal(size=(300, 40)), tf.float32)
        kernel.scatter_nd_update(ids[:, tf.newaxis], rows)
        index.update(kernel, None, ids)
        for per_example in (False, True):
            yield index.candidates(queries, 60, tf.constant([step, 1]), per_example)
"""

STATE_WITH_THREADS = (
    PREAMBLE
    + """
import hashlib
for index in indexes():
    outputs = list(steps(index))
    arrays = [x.numpy() for x in (*outputs, *index.tables, index.codes(queries[:, 0]))]
    print(hashlib.sha256(b"".join(x.tobytes() for x in arrays)).hexdigest())
"""
)

# A tensor that was read from a variable keeps its values, though tables are changed in place.
READ_BEFORE_UPDATE = (
    PREAMBLE
    + """
index = next(indexes())
before = [variable.value.read_value() for variable in index.tables]
copies = [tensor.numpy().copy() for tensor in before]
list(steps(index))
print(all((x.numpy() == y).all() for x, y in zip(before, copies)))
print(all((x.numpy() != y).any() for x, y in zip(index.tables, copies)))
"""
)


@pytest.mark.thorough
def test_the_result_does_not_depend_on_threads(tmp_path, monkeypatch):
    use("baseline", monkeypatch)
    monkeypatch.delenv("TFX_LARGEOUT_ISA")
    alone = run_program(tmp_path, STATE_WITH_THREADS, "1")
    assert len(set(alone)) == 3
    assert run_program(tmp_path, STATE_WITH_THREADS, "3") == alone


@pytest.mark.thorough
def test_tensors_read_before_keep_their_values(tmp_path, monkeypatch):
    use("baseline", monkeypatch)
    assert run_program(tmp_path, READ_BEFORE_UPDATE, "2") == ["True"] * 2
