# SPDX-License-Identifier: Apache-2.0
"""The private names of Keras by which a head learns what Keras tells no layer."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf
from keras.src.backend.common import global_state
from keras.src.backend.common.symbolic_scope import in_symbolic_scope


def calling_model(layer: keras.layers.Layer) -> Any:
    """Returns the model whose call runs `layer`, the outermost one; None outside of models.

    No public name says so: `Layer._get_call_context`.
    """
    entry = layer._get_call_context().entry_layer
    return entry if isinstance(entry, keras.Model) else None


def asks_for_shapes() -> bool:
    """Says whether Keras only finds out shapes, maybe of bare tensors or before there are values.

    No public name says so: `in_symbolic_scope`.
    """
    return in_symbolic_scope()


def applying_optimizer() -> Any:
    """Returns the innermost optimizer whose `apply` runs; None outside of `apply`.

    Keras opens a name scope for each, but no public name says whose: `name_scope_stack`.
    """
    for scope in reversed(global_state.get_global_attribute("name_scope_stack") or []):
        if isinstance(scope.caller, keras.optimizers.Optimizer):
            return scope.caller
    return None


def batches_applied(optimizer: Any) -> tf.Tensor:
    """Returns how many batches an optimizer has applied gradients of, `[]` int64.

    The public `iterations` counts steps, of `gradient_accumulation_steps` batches each, and does
    not say where in a step a batch is: `_iterations`.
    """
    return tf.cast(tf.convert_to_tensor(optimizer._iterations), tf.int64)


def in_train_step() -> bool:
    """Says whether a step of `fit` or `train_on_batch` is traced now.

    No public name says so: the name that Keras gives the function of a step. Where it has another
    name, or runs eagerly, the answer is False.
    """
    graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
    while graph is not None:
        if getattr(graph, "name", "") == "one_step_on_data":
            return True
        graph = getattr(graph, "outer_graph", None)
    return False
