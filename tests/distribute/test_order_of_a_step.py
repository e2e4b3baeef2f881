# SPDX-License-Identifier: Apache-2.0
"""What other workers wait for does not wait for the update of rows."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfx_largeout as tlo
from tfx_largeout.distribute.workers import ALONE, Workers, set_current


class OneOfTwo(Workers):
    """A worker whose other one says the same, and adds nothing. Notes what is sent in a step."""

    def __init__(self):
        super().__init__(2)
        self.sent = {}

    def gather(self, x, name):
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
