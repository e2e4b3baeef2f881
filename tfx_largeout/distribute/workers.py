# SPDX-License-Identifier: Apache-2.0
"""Workers: the processes that train a model together, and what they send each other."""

from __future__ import annotations

import collections
import functools
import weakref
import zlib
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfx_largeout.distribute.wait_limit import WaitLimit
from tfx_largeout.tensorflow_internals import function_graph

_GROUP = 7000  # TensorFlow's own strategies count their groups from 1
_PRIME = 2**31 - 1


class Workers:
    """`size` processes, of which this is number `rank`. Alone, each method returns what it gets.

    All workers must call the same methods in the same order. A collective is known by its name and
    by the shape of what is sent: workers that trace a function anew still understand each other. A
    name that comes up again in one function is numbered.

    Args:
        size: The number of workers R.
        rank: The number of this one.
        device: The device on which collectives run; None: alone.
        limit: To how long a collective waits for the others; None: it waits.
        server: What must live as long as the workers are connected.
    """

    def __init__(
        self,
        size: int = 1,
        rank: int = 0,
        device: str | None = None,
        limit: WaitLimit | None = None,
        server: Any = None,
    ) -> None:
        self.size, self.rank = size, rank
        self._device, self._limit, self._server = device, limit, server
        self._uses: weakref.WeakKeyDictionary[Any, collections.Counter[str]] = (
            weakref.WeakKeyDictionary()
        )

    @property
    def alone(self) -> bool:
        """Whether there is one worker only."""
        return self.size == 1

    def gather(self, x: tf.Tensor, name: str) -> tf.Tensor:
        """Returns what all workers have, `[R, ...]`. No gradient.

        Args:
            x: Of the same shape on all workers, with at least one element; not bfloat16, not bool.
            name: Of the call.
        """
        if self.alone:
            return x[tf.newaxis]
        y = self._run(tf.raw_ops.CollectiveGatherV2, "gather/" + name, x, x[tf.newaxis])
        return tf.ensure_shape(y, [self.size, *x.shape])

    def sum(self, x: tf.Tensor, name: str) -> tf.Tensor:
        """Returns the sum over workers; the gradient is passed on as it is.

        What is computed from the sum is the same on all workers, and so is its gradient.

        Args:
            x: Of the same shape on all workers.
            name: Of the call.
        """
        if self.alone:
            return x

        @tf.custom_gradient
        def run(x: tf.Tensor) -> Any:
            return self._all_reduce(x, name), lambda upstream: upstream

        return run(x) if x.dtype.is_floating else self._all_reduce(x, name)

    def log_sum_exp(self, x: tf.Tensor, name: str) -> tf.Tensor:
        """Returns log sum_r e^{x_r} of what each worker r has; each gets its part of the gradient.

        Args:
            x: Of the same shape on all workers.
            name: Of the call.
        """
        if self.alone:
            return x

        @tf.custom_gradient
        def run(x: tf.Tensor) -> Any:
            parts = tf.cast(self.gather(x, name), tf.float64)
            total = tf.cast(tf.reduce_logsumexp(parts, axis=0), x.dtype)
            return total, lambda upstream: upstream * tf.exp(x - total)

        return run(x)

    def share(self, x: tf.Tensor, name: str) -> tf.Tensor:
        """Returns x, which all workers have; the gradient is summed over workers.

        For what meets the classes of this worker alone: each knows a part of the gradient.
        """
        if self.alone:
            return x

        @tf.custom_gradient
        def run(x: tf.Tensor) -> Any:
            return tf.identity(x), lambda upstream: self._all_reduce(upstream, "of/" + name)

        return run(x)

    def exchange(self, x: tf.Tensor, name: str) -> tf.Tensor:
        """Returns what each worker has for this one, `[R, ...]`, of what this one has for each.

        Args:
            x: `[R, ...]`, of the same shape on all workers, with at least one element.
            name: Of the call.
        """
        if self.alone:
            return x
        y = self._run(tf.raw_ops.CollectiveAllToAllV2, "to/" + name, x, x)
        return tf.ensure_shape(y, x.shape)

    def sum_of_own(self, x: tf.Tensor, name: str) -> tf.Tensor:
        """Returns the sum over workers of what each has for this one, `[...]` of `[R, ...]`."""
        return tf.reduce_sum(self.exchange(x, name), axis=0)

    def first(self, x: tf.Tensor, name: str) -> tf.Tensor:
        """Returns what worker 0 has. No gradient."""
        return self._all_reduce(x if self.rank == 0 else tf.zeros_like(x), "first/" + name)

    def _all_reduce(self, x: tf.Tensor, name: str) -> tf.Tensor:
        if self.alone:
            return x
        add = functools.partial(tf.raw_ops.CollectiveReduceV2, merge_op="Add", final_op="Id")
        y = self._run(add, "sum/" + name, x, x)
        return tf.ensure_shape(y, x.shape)

    def _run(
        self, collective: Callable[..., tf.Tensor], name: str, x: tf.Tensor, sent: tf.Tensor
    ) -> tf.Tensor:
        with tf.device(self._device):
            # Where nothing is sent, TensorFlow's collective ends the process.
            with tf.control_dependencies(_check_not_empty(x, name) + self._turn()):
                y = collective(input=sent, **self._where(name, x))
            with tf.control_dependencies([y]), tf.control_dependencies(self._turn()):
                return tf.identity(y)

    def _turn(self) -> list[tf.Operation]:
        return [] if self._limit is None else self._limit.turn()

    def _where(self, name: str, x: tf.Tensor) -> dict[str, Any]:
        return {
            "group_size": self.size,
            "group_key": _GROUP + self.size,
            "instance_key": _instance_key(self._numbered(name), x),
            "ordering_token": [],
            "communication_hint": "ring",
        }

    def _numbered(self, name: str) -> str:
        if tf.executing_eagerly():
            return f"{name}#1"  # so that a worker outside of a step meets those that begin one
        uses = self._uses.setdefault(function_graph(), collections.Counter())
        uses[name] += 1
        return f"{name}#{uses[name]}"


ALONE = Workers()
_connected = ALONE


def current() -> Workers:
    """Returns the workers that this process has connected to; alone, if it has not."""
    return _connected


def set_current(workers: Workers) -> None:
    """Makes these the workers of the process."""
    global _connected
    _connected = workers


def require_alone(what: str) -> None:
    """Refuses what works in a single process only.

    Raises:
        RuntimeError: The process is one of several workers.
    """
    if not _connected.alone:
        # Keras takes a NotImplementedError of a layer's build for a layer without shapes.
        raise RuntimeError(
            f"{what} must run in a single process; got {_connected.size} workers. See "
            "docs/scale_out.md for what works with several."
        )


def _instance_key(name: str, x: tf.Tensor) -> tf.Tensor:
    """Returns a number that goes by name, dtype and shape: the same with a static shape or not."""
    key: Any = zlib.crc32(f"{name}/{x.dtype.name}/{x.shape.rank}".encode()) % _PRIME
    if x.shape.is_fully_defined():
        for size in x.shape:
            key = (key * 1000003 + size) % _PRIME
        return tf.constant(key, tf.int32)
    key = tf.constant(key, tf.int64)
    for size in tf.unstack(tf.shape(x, tf.int64), num=x.shape.rank):
        key = (key * 1000003 + size) % _PRIME
    return tf.cast(key, tf.int32)


def _check_not_empty(x: tf.Tensor, name: str) -> list[tf.Operation]:
    if x.shape.is_fully_defined() and x.shape.num_elements():
        return []
    check = tf.debugging.Assert(tf.size(x) > 0, [f"{name!r} must send something; got", tf.shape(x)])
    return [] if check is None else [check]
