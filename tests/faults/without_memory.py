# SPDX-License-Identifier: Apache-2.0
"""An op in a process with hardly any memory left: prints the outcome, as JSON.

    python tests/faults/without_memory.py candidate_update

Each op is called three times: with little to do; with much, and no memory for it; and with the
memory. Linux only.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf

from tfx_largeout.ops.candidates.candidate_update import candidate_update
from tfx_largeout.ops.exact.softmax_update import softmax_update
from tfx_largeout.ops.exact.streamed_logits import streamed_logits
from tfx_largeout.ops.factored.factored_state import NUM_SLOTS, FactoredState
from tfx_largeout.ops.factored.factored_update import factored_statistics, factored_update
from tfx_largeout.ops.hashing.bucket_candidates import BucketOrder, bucket_candidates
from tfx_largeout.ops.hashing.hash_codes import HashFunctions
from tfx_largeout.ops.hashing.hash_tables import HashTables, update_tables
from tfx_largeout.ops.rows.row_rule import RowRule
from tfx_largeout.ops.rows.row_update import row_update

SGD = RowRule("sgd", (0.0, 0.0))
LEFT = 12 << 20  # bytes left, for outputs and TensorFlow itself


def variable(*shape, dtype="float32", value=0.5):
    return tf.Variable(tf.fill(shape, tf.constant(value, dtype)))


class CandidateUpdate:
    """With candidates per example, each group of classes has a separate dL/dH."""

    op, sizes = "TfxCandidateUpdate", (10, 2_000)

    def __init__(self):
        self.variables = [variable(10_000, 256)]

    def __call__(self, size):
        candidates = tf.random.stateless_uniform([size, 100], [1, 2], 0, 10_000, tf.int64)
        hidden, labels = tf.ones([size, 256]), candidates[:, :1]
        gradients = tf.ones([size, 1]), tf.ones([size, 100])
        return lambda: candidate_update(
            *(self.variables[0], None, [], [], hidden, labels, candidates, *gradients, SGD, 0.1),
            implementation="op",
        )


class SoftmaxUpdate:
    """Each share of the classes has a separate dL/dH."""

    op, sizes = "TfxSoftmaxUpdate", (4, 1_024)

    def __init__(self):
        self.variables = [variable(5_000, 512, value=0.01)]

    def __call__(self, size):
        hidden, labels = tf.ones([size, 512]), tf.zeros([size, 1], tf.int64)
        numbers = tf.ones([size])
        return lambda: softmax_update(
            *(self.variables[0], None, [], [], hidden, labels, numbers * 13, tf.ones([size, 1])),
            *(numbers, SGD, 0.1),
            implementation="op",
        )


class FactoredUpdate:
    """Some matrices [B, D] and [D, D]."""

    op, sizes = "TfxFactoredUpdate", (4, 1_024)

    def __init__(self):
        classes, width = 2_000, 1_024
        unit, zeros = np.eye(width), np.zeros(width)
        weights = np.full((classes, width), 0.01)
        transitions = np.stack([unit] * NUM_SLOTS)
        values = (weights, unit, unit, weights.T @ weights, zeros, weights.sum(0), transitions)
        counts = np.array([classes] + [0] * (NUM_SLOTS - 1))
        self.variables = [tf.Variable(value.astype("float32")) for value in values]
        self.variables += [tf.Variable(np.zeros(classes, np.uint8)), tf.Variable(counts)]
        self.variables += [tf.Variable(np.int64(0))]

    def __call__(self, size):
        state = FactoredState(*self.variables)
        hidden = tf.random.stateless_normal([size, 1_024], [1, 2]) / 32
        labels, ones = tf.zeros([size, 1], tf.int64), tf.ones([size])
        found = factored_statistics(state, hidden, labels, implementation="op")
        gradients = tf.ones([size, 1]), ones, ones
        rates = tf.constant(1e-3), tf.constant(0.0)
        return lambda: factored_update(
            *(state, hidden, labels, found.gram_hidden, found.u_hidden, gradients, *rates),
            implementation="op",
        )


class StreamedLogits:
    """h in panels."""

    op, sizes = "TfxResourceStreamedLogits", (4, 60_000)

    def __init__(self):
        self.variables = [variable(50, 256)]

    def __call__(self, size):
        hidden, labels = tf.ones([size, 256]), tf.zeros([size, 1], tf.int64)
        return lambda: streamed_logits(
            hidden, self.variables[0], None, labels, 1, implementation="op"
        )


class HashIndexUpdate:
    """A code for each class and table."""

    op, sizes = "TfxHashIndexUpdate", (1, 30)

    def __init__(self):
        classes, tables = 500_000, 30
        shapes = ([tables, classes], [tables, 17], [classes], [tables])
        self.variables = [variable(*shape, dtype="uint32", value=0) for shape in shapes]
        self.variables[3].assign(tf.fill([tables], tf.constant(2**32 - 1, tf.uint32)))
        self.variables += [variable(classes, 8)]
        planes = np.random.default_rng(0).normal(size=[4 * tables, 8]).astype("float32")
        self.functions = HashFunctions(np.zeros([0, 0], np.int32), planes, 1)
        self.now = 0

    def __call__(self, size):
        *tables, kernel = self.variables
        self.now += 1
        now, which = tf.constant(self.now), tf.constant([0, size], tf.int64)
        touched, radii = tf.constant([3, 5], tf.int64), tf.zeros([0])
        return lambda: update_tables(
            *(kernel, None, HashTables(*tables), self.functions, 4, touched, now, which, radii),
            implementation="op",
        )


class BucketCandidates:
    """Votes for each class."""

    op, sizes = "TfxBucketCandidates", (1, 8_000_000)

    def __init__(self):
        self.variables = []

    def __call__(self, size):
        entries = tf.Variable(tf.cast(tf.range(size)[tf.newaxis], tf.uint32))
        starts = tf.Variable(tf.constant([[0, size]], tf.uint32))
        tables = HashTables(entries, starts, entries, starts)
        codes, order = tf.zeros([3, 1, 1], tf.int32), tf.constant([0])
        first = BucketOrder(order, tf.constant([0], tf.int64), tf.constant(0, tf.int64))
        return lambda: bucket_candidates(
            *(tables, codes, 1, first), per_example=False, max_per_bucket=9, implementation="op"
        )


class RowUpdate:
    """Ids that are sorted, to see that none comes twice."""

    op, sizes = "TfxRowUpdate", (4, 4_000_000)

    def __init__(self):
        self.variables = [variable(4_000_000, 1)]

    def __call__(self, size):
        ids, gradient = tf.range(size, dtype=tf.int64), tf.ones([size, 1])
        return lambda: row_update(
            *(self.variables[0], [], ids, gradient, SGD, 0.1), implementation="op"
        )


OPS = {
    case.__name__: case
    for case in (
        *(CandidateUpdate, SoftmaxUpdate, FactoredUpdate, StreamedLogits, HashIndexUpdate),
        *(BucketCandidates, RowUpdate),
    )
}


def size_of_process() -> int:
    """Returns the bytes of addresses that this process has."""
    return int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")


def main() -> None:
    """Calls the op that the command line names."""
    case = OPS[sys.argv[1]]()
    small, large = case.sizes
    case(small)()
    call = case(large)
    before = [value.numpy() for value in case.variables]
    message = ""
    resource.setrlimit(resource.RLIMIT_AS, (size_of_process() + LEFT, resource.RLIM_INFINITY))
    try:
        call()
    except tf.errors.ResourceExhaustedError as error:
        message = error.message
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    after = [value.numpy() for value in case.variables]
    same = all(np.array_equal(a, b) for a, b in zip(before, after, strict=True))
    call()
    print(json.dumps({"op": case.op, "message": message, "unchanged": same}))


if __name__ == "__main__":
    main()
