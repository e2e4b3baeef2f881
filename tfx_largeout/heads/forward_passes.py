# SPDX-License-Identifier: Apache-2.0
"""Lets no head of a step be updated before all of them have accepted labels and activations."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager

import tensorflow as tf

_ATTRIBUTE = "_tfx_largeout_forward_passes"


def note_forward_pass(values: Sequence[tf.Tensor]) -> None:
    """Notes the statistics of a head in the graph that is being made.

    Eagerly there is nothing to do: all forward passes have run when the first gradient is taken.
    """
    if not tf.executing_eagerly():
        graph = tf.compat.v1.get_default_graph()
        setattr(graph, _ATTRIBUTE, [*getattr(graph, _ATTRIBUTE, []), *values])


def after_forward_passes() -> AbstractContextManager:
    """Returns a scope whose ops run after all forward passes that this graph has by now."""
    if tf.executing_eagerly():
        return tf.control_dependencies([])
    graph = tf.compat.v1.get_default_graph()
    return tf.control_dependencies(getattr(graph, _ATTRIBUTE, []))
