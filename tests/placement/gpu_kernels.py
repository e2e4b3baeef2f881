# SPDX-License-Identifier: Apache-2.0
"""Which nodes of a traced function have no GPU kernel: by TensorFlow's registry, without a GPU."""

from __future__ import annotations

import collections
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import tensorflow as tf
from tensorflow.core.framework import kernel_def_pb2, node_def_pb2
from tensorflow.python.framework import kernels

from tfx_largeout.run_time_checks import BRANCH

# A node of these says where a value comes from, or that nothing is to be done: nothing runs.
_NO_WORK = ("Placeholder", "NoOp")


class HostNode(NamedTuple):
    """A node without a GPU kernel, or a variable that can't be on a GPU."""

    op: str
    place: str
    """The file of the package that made it (the innermost, without its folders), or `""`."""
    line: int
    types: str
    """Its dtypes, for people."""
    shapes: tuple[tf.TensorShape, ...]
    """Of its inputs and outputs, as far as they are known."""


def nodes_of(
    graph: Any, seen: set[str] | None = None, without_failures: bool = False
) -> Iterator[tf.Operation]:
    """Yields each node of a graph, and of every function that it can call, once.

    Args:
        graph: The graph of a concrete function.
        seen: Collects the names of the functions.
        without_failures: Whether to leave out nodes that run only if a run-time check has failed.
    """
    seen = set() if seen is None else seen
    if without_failures:
        seen |= {
            node.get_attr("else_branch").name
            for node in graph.get_operations()
            if node.type in ("If", "StatelessIf") and node.name.split("/")[-1].startswith(BRANCH)
        }
    for operation in graph.get_operations():
        if operation.type not in _NO_WORK:
            yield operation
    for name, function in list(graph._functions.items()):
        if name not in seen:
            seen.add(name)
            yield from nodes_of(function.graph, seen, without_failures)


def functions_of(graph: Any) -> set[str]:
    """Returns the names of all functions that a graph holds, as it would be written to a file."""
    return {function.signature.name for function in graph.as_graph_def().library.function}


def has_gpu_kernel(node: node_def_pb2.NodeDef) -> bool:
    """Whether TensorFlow has a kernel for a node that can be placed on a GPU.

    One of the device type `DEFAULT` is for all devices; those work on small things in host memory.
    """
    return any(_serves(kernel, node) for kernel in _gpu_kernels(node.op))


def host_nodes(graph: Any) -> list[HostNode]:
    """Returns the nodes of a graph and of its functions that have no GPU kernel."""
    seen: set[str] = set()
    nodes = [
        node
        for node in nodes_of(graph, seen)
        if not has_gpu_kernel(node.node_def) and not _is_text(node)
    ]
    missing = functions_of(graph) - seen
    assert not missing, f"functions that were not looked at: {missing}"
    return [_host_node(node) for node in nodes]


def host_variables(graph: Any) -> list[HostNode]:
    """Returns the variables that a graph reads or writes and that can't be on a GPU."""
    found = []
    for captured, placeholder in graph.captures:
        if captured.dtype == tf.resource:
            (content,) = captured._handle_data.shape_and_type
            dtype, shape = tf.as_dtype(content.dtype), tf.TensorShape(content.shape)
            if not has_gpu_kernel(_variable_node(dtype)):
                found.append(HostNode("VarHandleOp", placeholder.name, 0, dtype.name, (shape,)))
    return found


def count_waits(graph: Any) -> dict[str, int]:
    """Returns the number of nodes of a graph and its functions for which the host waits.

    Nodes of a `run_time_checks` branch don't count, as they run only if a check has failed; nor do
    nodes on the host, and branches by a condition that is computed there.
    """
    nodes = [node for node in nodes_of(graph, without_failures=True) if not _is_on_host(node)]
    counts = collections.Counter(node.type for node in nodes)
    return {
        "Assert": counts["Assert"],
        "Where": counts["Where"] + counts["Unique"] + counts["UniqueV2"],
        "If": counts["If"] + counts["StatelessIf"],
        "While": counts["While"] + counts["StatelessWhile"],
    }


def _is_on_host(node: tf.Operation) -> bool:
    is_branch = node.type in ("If", "StatelessIf")
    return "CPU" in (node.inputs[0].op.device if is_branch else node.device)


@functools.cache
def _gpu_kernels(op: str) -> list[kernel_def_pb2.KernelDef]:
    registered = kernels.get_registered_kernels_for_op(op).kernel
    return [kernel for kernel in registered if kernel.device_type in ("GPU", "DEFAULT")]


def _serves(kernel: kernel_def_pb2.KernelDef, node: node_def_pb2.NodeDef) -> bool:
    for constraint in kernel.constraint:
        if constraint.name not in node.attr:
            return False
        attribute, allowed = node.attr[constraint.name], constraint.allowed_values.list
        field = attribute.WhichOneof("value")
        values = {"type": [attribute.type], "s": [attribute.s], "list": attribute.list.type}[field]
        if not set(values) <= {*allowed.type, *allowed.s}:
            return False
    return True


def _host_node(node: tf.Operation) -> HostNode:
    frames = [frame for frame in node.traceback if "/tfx_largeout/" in frame.filename]
    place, line = (Path(frames[-1].filename).name, frames[-1].lineno) if frames else ("", 0)
    attributes = node.node_def.attr
    types = {
        name: tf.as_dtype(attributes[name].type).name
        for name in sorted(attributes)
        if attributes[name].WhichOneof("value") == "type"
    }
    shapes = tuple(tensor.shape for tensor in [*node.inputs, *node.outputs])
    return HostNode(node.type, place, line, str(types), shapes)


def _is_text(node: tf.Operation) -> bool:
    """Whether it is a constant string: the message of an `Assert`, which takes it from the host."""
    return node.type == "Const" and node.outputs[0].dtype == tf.string


def _variable_node(dtype: tf.DType) -> node_def_pb2.NodeDef:
    node = node_def_pb2.NodeDef(op="VarHandleOp")
    node.attr["dtype"].type = dtype.as_datatype_enum
    return node
