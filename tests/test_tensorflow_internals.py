# SPDX-License-Identifier: Apache-2.0
"""The private names of TensorFlow work as assumed; a failing test has the name that is gone.

Names of collectives are tested in `tests/distribute`.
"""

from __future__ import annotations

import tensorflow as tf

from tfx_largeout.tensorflow_internals import (
    batch_size_of,
    custom_gradients,
    custom_gradients_forgotten,
    function_graph,
    is_branch,
    is_branch_or_loop,
    is_for_xla,
    is_stateful,
    tape_may_record,
    traced_once,
)


def test_a_tape_is_known():
    assert not tape_may_record()
    with tf.GradientTape():
        assert tape_may_record(), "record.could_possibly_record"


def test_graphs_of_branches_and_loops_are_known():
    seen = []

    def look():
        graph = tf.compat.v1.get_default_graph()
        seen.append((is_branch(graph), is_branch_or_loop(graph), function_graph().name))
        return tf.constant(1)

    @tf.function
    def step(flag):
        look()
        tf.cond(flag, look, look)
        tf.while_loop(lambda i: i < 1, lambda i: i + look(), [tf.constant(0)])

    step(tf.constant(True))
    outside, branch, other_branch, loop = seen
    assert outside[:2] == (False, False)
    assert branch[:2] == other_branch[:2] == (True, True), "CondBranchFuncGraph"
    assert loop[:2] == (False, True), "WhileBodyFuncGraph"
    assert {name for *_, name in seen} == {outside[2]}, "FuncGraph.outer_graph"


def test_a_graph_for_xla_is_known():
    seen = []

    def look():
        seen.append(is_for_xla(tf.compat.v1.get_default_graph()))
        return tf.constant(1)

    for compiled in (False, True):
        tf.function(look, jit_compile=compiled).get_concrete_function()
    assert seen == [False, True], "GraphOrParentsInXlaContext"


def test_a_function_that_makes_variables_is_traced_once():
    made = []

    def step(x):
        with tf.init_scope():
            made.append(tf.Variable(1.0))
        return x * made[-1]

    graph = traced_once(step, tf.TensorSpec([2]))
    assert len(made) == 1, "func_graph_from_py_func"
    assert [op.type for op in graph.get_operations()].count("Mul") == 1
    assert len(graph.variables) == 1 and len(graph.captures) == 1


def test_ops_with_a_state_are_known():
    assert is_stateful("RandomUniform"), "op_def_registry"
    assert not is_stateful("ComputeAccidentalHits") and not is_stateful("no such op")


def test_the_batch_size_of_a_dataset_is_known():
    numbers = tf.data.Dataset.range(10)
    assert batch_size_of(numbers) == 0
    assert batch_size_of(numbers.batch(3).map(lambda x: x + 1).prefetch(1)) == 3, "_batch_size"


def test_custom_gradients_are_forgotten():
    @tf.custom_gradient
    def same(x):
        return tf.identity(x), lambda upstream: upstream

    before = custom_gradients()
    with custom_gradients_forgotten():
        tf.function(same).get_concrete_function(tf.TensorSpec([2]))
        assert custom_gradients() > before, "gradient_registry._registry"
    assert custom_gradients() == before
