# SPDX-License-Identifier: Apache-2.0
"""What is sent in a step, and what other workers wait for: not for the update of rows."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfx_largeout as tlo
from tfx_largeout.distribute.workers import ALONE, Workers, set_current
from tfx_largeout.heads.base import HeadOutput


class OneOfTwo(Workers):
    """A worker whose other one says the same, and adds nothing. Notes what is sent in a step."""

    def __init__(self):
        super().__init__(2)
        self.sent = {}
        self.gathered = []

    def gather(self, x, name):
        self.gathered.append(name)
        return tf.stack([x, x])

    def add_up(self, x, name):
        self.sent[name] = x
        return tf.identity(x)

    def exchange(self, x, name):
        self.sent[name] = x
        return tf.identity(x)


@pytest.fixture
def workers():
    set_current(OneOfTwo())
    yield tlo.distribute.current()
    set_current(ALONE)


def before(op):
    """Returns all ops that run before an op."""
    found, waiting = set(), [op]
    while waiting:
        op = waiting.pop()
        above = {x.op for x in op.inputs} | set(op.control_inputs)
        waiting += above - found
        found |= above
    return found


def test_rows_are_updated_while_gradients_are_under_way(workers):
    head = tlo.heads.SampledHead(
        40, tlo.samplers.Uniform(8), tlo.optimizers.RowAdam(0.1), seed=1, name="head"
    )
    model = keras.Sequential([keras.Input([3]), keras.layers.Dense(4), head])
    model.compile(tlo.distribute.DataParallel("sgd"), tlo.losses.ComplementarySum())
    x, y = np.ones([6, 3], "float32"), np.arange(6)
    start = head.kernel.numpy()
    model.fit(x, y, batch_size=6, shuffle=False, verbose=0)
    assert not np.array_equal(head.kernel.numpy(), start)
    graph = workers.sent["trunk/dense"].graph
    handles = [inner.name for outer, inner in graph.captures if outer is head.kernel.value.handle]
    updates = {
        op
        for op in graph.get_operations()
        if op.type in ("If", "StatelessIf") and {x.name for x in op.inputs} & set(handles)
    }
    assert updates
    for name in ("head/hidden_gradient", "trunk/dense"):
        assert not updates & before(workers.sent[name].op), name


def test_losses_and_metrics_share_what_is_gathered(workers):
    head = tlo.heads.SampledHead(
        40, tlo.samplers.Uniform(8), tlo.optimizers.RowSGD(0.1), name="head"
    )
    head.build([None, 3])
    output = HeadOutput(head, tf.ones([6, 3]), training=False)
    labels, weights = tf.range(6), tf.ones([6])
    first = output.over_workers(labels, weights, None)
    once = list(workers.gathered)
    assert once
    assert output.over_workers(labels, weights, None)[2] is first[2]
    assert output.over_workers(labels, None, None)[2] is None
    assert workers.gathered == once
    output.over_workers(labels, 2 * weights, None)
    assert len(workers.gathered) > len(once)
