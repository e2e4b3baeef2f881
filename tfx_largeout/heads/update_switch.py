# SPDX-License-Identifier: Apache-2.0
"""UpdateSwitch: whether a gradient through a head updates it, and which candidates it draws."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from tfx_largeout.arguments import integer_argument
from tfx_largeout.devices import HOST
from tfx_largeout.tensorflow_internals import function_graph

_UPDATING = -1  # larger values: no update, and the number of the draw
_NEXT_DRAW = 2**32  # above every seed


def seed_argument(seed: int | None) -> int:
    """Returns a head's seed, an integer in [0, 2^32); None: a random one."""
    if seed is None:
        seed = random.randrange(2**31)  # seeded by keras.utils.set_random_seed
    seed = integer_argument("seed", seed, at_least=0)
    if seed >= _NEXT_DRAW:
        raise ValueError(f"seed must be less than 2^32; got {seed}")
    return seed


def seed_of_step(seed: int, step: tf.Tensor, draw: tf.Tensor) -> tf.Tensor:
    """Returns the seed of a step, `[2]` int64, from the head's seed, the step and the draw.

    It is in host memory, where random ops look at it.
    """
    with tf.device(HOST):
        return tf.stack([seed + _NEXT_DRAW * draw, tf.cast(step, tf.int64)])


class UpdateSwitch:
    """A switch that works around eager code, and within a function that is traced.

    A traced step outlives the Python code around it. So the eager switch is a variable, which each
    step reads; the switch of a traced function is a constant of that function. Neither is saved
    with a model.
    """

    def __init__(self) -> None:
        with tf.init_scope(), tf.device(HOST):
            self.state = tf.Variable(
                _UPDATING, trainable=False, dtype=tf.int64, name="update_switch"
            )
        self._traced: tuple[tf.Graph, int] | None = None

    @contextlib.contextmanager
    def off(self, draw: int) -> Iterator[None]:
        """A context without updates, in which candidates are drawn again."""
        if tf.executing_eagerly():
            before = self.state.numpy()
            self.state.assign(draw)
            try:
                yield
            finally:
                self.state.assign(before)
        else:
            traced, self._traced = self._traced, (function_graph(), draw)
            try:
                yield
            finally:
                self._traced = traced

    @property
    def draw(self) -> tf.Tensor:
        """The number of the draw, int64: 0 in training."""
        with tf.device(HOST):
            return tf.maximum(self._present(), 0)

    @property
    def is_off(self) -> bool:
        """Whether Python code knows that it is off: eagerly, or in the traced function."""
        if tf.executing_eagerly():
            return bool(self.state.numpy() != _UPDATING)
        return self._traced_draw() is not None

    @property
    def is_on(self) -> tf.Tensor:
        """Whether it is on, `[]` bool, when a step runs."""
        if self.is_off:
            return tf.constant(False)
        with tf.device(HOST):
            return tf.equal(self.state, _UPDATING)

    def either(self, update: Callable[[], Any], look: Callable[[], Any]) -> Any:
        """Returns what `update` returns while the switch is on, else what `look` does."""
        if self.is_off:
            return look()
        return tf.cond(self.is_on, update, look)

    def _present(self) -> tf.Tensor:
        draw = None if tf.executing_eagerly() else self._traced_draw()
        return self.state.read_value() if draw is None else tf.constant(draw, tf.int64)

    def _traced_draw(self) -> int | None:
        """Returns the draw if the traced function has switched updates off, else None."""
        if self._traced is None:
            return None
        graph, draw = self._traced
        if graph is not function_graph():
            raise RuntimeError(
                "without_update must be entered in the function that calls the head, or eagerly, "
                "around functions; got a head called in another function, which would keep the "
                "switch when it is called again"
            )
        return draw
