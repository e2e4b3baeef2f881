# SPDX-License-Identifier: Apache-2.0
"""UpdateSwitch: whether a gradient through a self-updating head updates it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

_UPDATING = -1  # above it: no update, and the number of the draw


class UpdateSwitch:
    """A switch that works around code that runs eagerly, and within a function that is traced.

    A traced step outlives the Python code around it. So what is entered eagerly is a variable,
    which each step reads; what is entered while a function is traced is a constant of that
    function. Neither is saved with a model.
    """

    def __init__(self) -> None:
        with tf.init_scope():
            self._state = tf.Variable(_UPDATING, trainable=False, dtype=tf.int64)
        self._traced: int | None = None

    @contextlib.contextmanager
    def off(self, draw: int) -> Iterator[None]:
        """Within it nothing is updated, and candidates are those of another draw."""
        if tf.executing_eagerly():
            before = self._state.numpy()
            self._state.assign(draw)
            try:
                yield
            finally:
                self._state.assign(before)
        else:
            traced, self._traced = self._traced, draw
            try:
                yield
            finally:
                self._traced = traced

    @property
    def draw(self) -> tf.Tensor:
        """The number of the draw, int64: 0 in training."""
        return tf.maximum(self._present(), 0)

    @property
    def is_off(self) -> bool:
        """Whether it is known to be off while Python runs: eagerly, or in the function traced."""
        if tf.executing_eagerly():
            return bool(self._state.numpy() != _UPDATING)
        return self._traced is not None

    def either(self, update: Callable[[], Any], look: Callable[[], Any]) -> Any:
        """Returns what `update` returns while the switch is on, else what `look` does."""
        if self.is_off:
            return look()
        return tf.cond(tf.equal(self._state, _UPDATING), update, look)

    def _present(self) -> tf.Tensor:
        if self._traced is not None:
            return tf.constant(self._traced, tf.int64)
        return self._state.read_value()
