# SPDX-License-Identifier: Apache-2.0
"""Checks of the values of tensors when a graph runs, and of how it runs.

All checks at one place share one branch. Code that changes variables in place raises an error for
several replicas, and for XLA.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfx_largeout.tensorflow_internals import is_for_xla

BRANCH = "run_time_checks"
"""The name of the branch of a graph in which nothing runs unless a check has failed."""


class Check(NamedTuple):
    """A condition that must hold before tensors are used or written.

    Attributes:
        holds: `[]` bool.
        message: Returns the error message, as texts and tensors. In a graph it is part of the
            branch that runs only if a check fails, so it costs nothing otherwise. It must not read
            variables.
    """

    holds: tf.Tensor
    message: Callable[[], list[Any]]


def after(checks: Sequence[Check | None]) -> Any:
    """Returns a scope whose ops run after checks (None: nothing to check).

    The first failing check raises. The host must wait for the device's result, so all checks share
    one result.

    Raises:
        tf.errors.InvalidArgumentError: A check fails. In a graph, when it runs.
    """
    there = [check for check in checks if check is not None]
    if tf.executing_eagerly():
        for check in there:
            if not check.holds:
                raise tf.errors.InvalidArgumentError(None, None, _sentence(check.message()))
        return tf.control_dependencies([])
    if not there:
        return tf.control_dependencies([])
    all_hold = tf.reduce_all(tf.stack([check.holds for check in there]))
    return tf.control_dependencies([tf.cond(all_hold, tf.no_op, lambda: _raise(there), BRANCH)])


def _sentence(parts: list[Any]) -> str:
    words = [part if isinstance(part, str) else _text(part) for part in parts]
    return " ".join(words).replace(" ,", ",").replace(" ;", ";")


def _text(value: Any) -> str:
    array = np.asarray(value)
    return str(array.tolist()) if array.dtype.kind in "biu" else str(array)


def _raise(checks: list[Check]) -> tf.Operation:
    last: list[tf.Operation] = []
    for check in checks:
        with tf.control_dependencies(last):
            last = [tf.raw_ops.Assert(condition=check.holds, data=check.message())]
    return last[0]


def refuse_replicas(rule: str, advice: str) -> None:
    """Raises an error for a strategy with more than one replica, or with remote variables."""
    strategy = tf.distribute.get_strategy()
    if isinstance(strategy, tf.distribute.ParameterServerStrategy):
        raise RuntimeError(f"{rule}; got {type(strategy).__name__}. {advice}")
    replicas = strategy.num_replicas_in_sync
    if replicas > 1:
        raise RuntimeError(f"{rule}; got num_replicas_in_sync={replicas}. {advice}")


def refuse_xla(rule: str, got: str, advice: str) -> None:
    """Raises an error if traced for XLA."""
    if not tf.executing_eagerly() and is_for_xla(tf.compat.v1.get_default_graph()):
        raise RuntimeError(f"{rule}; got {got}. {advice}")
