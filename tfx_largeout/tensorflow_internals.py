# SPDX-License-Identifier: Apache-2.0
"""All private names of TensorFlow that the package uses, where no public name does the same.

`tests/test_tensorflow_internals.py` has a test for each, which fails by name if it is missing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import context, record
from tensorflow.python.framework import func_graph, op_def_registry, ops
from tensorflow.python.ops import control_flow_util
from tensorflow.python.ops import control_flow_v2_func_graphs as control_flow

_BRANCHES_AND_LOOPS = (
    control_flow.CondBranchFuncGraph,
    control_flow.WhileCondFuncGraph,
    control_flow.WhileBodyFuncGraph,
)


def tape_may_record() -> bool:
    """Returns whether a gradient tape may record here: `record.could_possibly_record`."""
    return record.could_possibly_record()


def function_graph() -> tf.Graph:
    """Returns the graph of the traced function, outside of any control flow."""
    graph = tf.compat.v1.get_default_graph()
    while is_branch_or_loop(graph):
        graph = graph.outer_graph
    return graph


def is_branch_or_loop(graph: Any) -> bool:
    """Returns whether a graph belongs to a `tf.cond` or `tf.while_loop`: `CondBranchFuncGraph`."""
    return isinstance(graph, _BRANCHES_AND_LOOPS)


def is_branch(graph: Any) -> bool:
    """Returns whether a graph belongs to a `tf.cond`: `CondBranchFuncGraph`."""
    return isinstance(graph, control_flow.CondBranchFuncGraph)


def is_for_xla(graph: tf.Graph) -> bool:
    """Returns whether a graph is traced for XLA: `GraphOrParentsInXlaContext`."""
    return control_flow_util.GraphOrParentsInXlaContext(graph)


def traced_once(function: Callable[..., Any], *specs: Any) -> Any:
    """Returns the graph of a function without running it: `func_graph_from_py_func`.

    `tf.function` would trace a function that creates variables twice.
    """
    return func_graph.func_graph_from_py_func("traced_once", function, specs, {})


def is_stateful(op_type: str) -> bool:
    """Returns whether ops of a type are stateful: `op_def_registry`."""
    definition = op_def_registry.get(op_type)
    return definition is not None and definition.is_stateful


def batch_size_of(dataset: Any) -> int:
    """Returns the last argument of `batch` in a dataset; 0 if unknown: `_batch_size`."""
    size = getattr(dataset, "_batch_size", None)
    if size is not None:
        return int(size)
    sizes = [batch_size_of(before) for before in dataset._inputs()]
    return sizes[0] if len(sizes) == 1 else 0


def abort_collectives(error: int, message: str) -> None:
    """Aborts waiting collectives of this process: `abort_collective_ops`."""
    context.context().abort_collective_ops(error, message)


def configure_coordination(**arguments: Any) -> None:
    """Sets how workers find each other, before TensorFlow starts: `context.context()`."""
    context.context().configure_coordination_service(**arguments)


def custom_gradients() -> set[str]:
    """Returns the names of the custom gradients that TensorFlow keeps: `gradient_registry`."""
    registered = getattr(ops.gradient_registry, "_registry", {})
    return {name for name in registered if name.startswith("CustomGradient-")}


@contextlib.contextmanager
def custom_gradients_forgotten() -> Iterator[None]:
    """A context after which TensorFlow drops the custom gradients that were traced in it.

    Keras's optimizers and self-updating heads use a `tf.custom_gradient`. TensorFlow keeps its
    function until the process ends, with everything the function refers to: the traced step, and W
    with it (docs/results/reliability.md).

    Earlier traces still work; graphs of models trained in the context can't be differentiated
    again.
    """
    before = custom_gradients()
    try:
        yield
    finally:
        for name in custom_gradients() - before:
            del ops.gradient_registry._registry[name]
