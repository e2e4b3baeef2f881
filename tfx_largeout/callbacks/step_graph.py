# SPDX-License-Identifier: Apache-2.0
"""StepGraph: the graph of a training step, and what of its state can't be put in a checkpoint."""

from __future__ import annotations

from typing import Any

import keras

from tfx_largeout.tensorflow_internals import is_stateful, traced_once


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
        self._graph = traced_once(model.train_step, element_spec)

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
        definition = self._graph.as_graph_def()
        functions = [function.node_def for function in definition.library.function]
        nodes = [node for nodes in (definition.node, *functions) for node in nodes]
        seeded = {node.op for node in nodes if {"seed", "seed2"} <= set(node.attr)}
        return sorted(filter(is_stateful, seeded))
