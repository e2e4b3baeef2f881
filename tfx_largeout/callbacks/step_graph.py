# SPDX-License-Identifier: Apache-2.0
"""StepGraph: the graph of a training step, and what of its state can't be put in a checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import keras
from tensorflow.python.framework import func_graph, op_def_registry


class StepGraph:
    """The training step of a model, traced but never run.

    Tracing makes all that Keras makes late: weights of a model without an input, slots of its
    optimizer, variables of its metrics.

    Cost: that of one more trace.

    Args:
        model: Compiled.
        element_spec: The kind of its batches.
    """

    def __init__(self, model: keras.Model, element_spec: Any) -> None:
        # tf.function would trace twice.
        self._graph = func_graph.func_graph_from_py_func(
            "train_step", model.train_step, (element_spec,), {}
        )

    def unknown_variables(self, known: set[int]) -> list[str]:
        """Returns the names of variables that the step uses beside the known ones.

        Args:
            known: The identities of resource handles.
        """
        captured = {id(tensor) for tensor, _ in self._graph.captures}
        return sorted(
            variable.name
            for variable in self._graph.variables
            if id(variable.handle) in captured and id(variable.handle) not in known
        )

    def stateful_random_ops(self) -> list[str]:
        """Returns the types of ops that draw random numbers from a state of their own."""
        return sorted({kind for kind in self._op_types() if _is_stateful_random(kind)})

    def _op_types(self) -> Iterator[str]:
        for operation in self._graph.get_operations():
            yield operation.type
        for function in self._graph._functions.values():
            for node in function.definition.node_def:
                yield node.op


def _is_stateful_random(op_type: str) -> bool:
    definition = op_def_registry.get(op_type)
    if definition is None or not definition.is_stateful:
        return False
    return {"seed", "seed2"} <= {attribute.name for attribute in definition.attr}
