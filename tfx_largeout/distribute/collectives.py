# SPDX-License-Identifier: Apache-2.0
"""ConnectedWorkers: processes that exchange tensors with TensorFlow's collectives."""

from __future__ import annotations

import atexit
import collections
import functools
import threading
import time
import weakref
import zlib
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfx_largeout.distribute.workers import Workers
from tfx_largeout.tensorflow_internals import abort_collectives, function_graph

_GROUP = 7000  # TensorFlow's strategies count their groups from 1
_PRIME = 2**31 - 1
_SOONEST = 1.0  # seconds between two checks


class ConnectedWorkers(Workers):
    """Workers that TensorFlow's server connects.

    A collective is identified by its name and the shape of its tensor, so that workers which trace
    a function again still match. A name that is repeated in one function is numbered.

    Args:
        size: The number of workers R.
        rank: The number of this worker.
        device: The device on which collectives run.
        limit: Limits how long a collective waits for the others.
        server: The server, kept alive as long as the workers are connected.
        wire_dtype: As in `Workers`.
        group_key: The number of this set of workers in TensorFlow. Default: by their number.
    """

    def __init__(
        self,
        size: int,
        rank: int,
        device: str,
        limit: WaitLimit,
        server: Any = None,
        wire_dtype: tf.DType = tf.float32,
        group_key: int | None = None,
    ) -> None:
        super().__init__(size, rank, wire_dtype)
        self._device, self._limit, self._server = device, limit, server
        self._group_key = _GROUP + size if group_key is None else group_key
        self._uses: weakref.WeakKeyDictionary[Any, collections.Counter[str]] = (
            weakref.WeakKeyDictionary()
        )

    def some(self, ranks: range) -> ConnectedWorkers:
        key = zlib.crc32(str(ranks).encode()) % _PRIME
        own = ranks.index(self.rank), self._device, self._limit, self._server, self.wire_dtype
        return ConnectedWorkers(len(ranks), *own, key)

    def gather(self, x: tf.Tensor, name: str) -> tf.Tensor:
        y = self._run(tf.raw_ops.CollectiveGatherV2, "gather/" + name, x, x[tf.newaxis])
        return tf.ensure_shape(y, [self.size, *x.shape])

    def add_up(self, x: tf.Tensor, name: str) -> tf.Tensor:
        if self.is_small(x):
            return tf.add_n(tf.unstack(self.gather(x, "sum/" + name)))
        return self.add_up_large(x, name)

    def add_up_large(self, x: tf.Tensor, name: str) -> tf.Tensor:
        add = functools.partial(tf.raw_ops.CollectiveReduceV2, merge_op="Add", final_op="Id")
        return tf.ensure_shape(self._run(add, "sum/" + name, x, x), x.shape)

    def exchange(self, x: tf.Tensor, name: str) -> tf.Tensor:
        y = self._run(tf.raw_ops.CollectiveAllToAllV2, "to/" + name, x, x)
        return tf.ensure_shape(y, x.shape)

    def _run(
        self, collective: Callable[..., tf.Tensor], name: str, x: tf.Tensor, sent: tf.Tensor
    ) -> tf.Tensor:
        if self.size == 1:  # a group of one worker
            return sent
        with tf.device(self._device):
            # TensorFlow's collective of an empty tensor kills the process.
            with tf.control_dependencies(_check_not_empty(x, name) + self._limit.turn()):
                y = collective(
                    input=sent,
                    group_size=self.size,
                    group_key=self._group_key,
                    instance_key=_instance_key(self._numbered(name), x),
                    ordering_token=[],
                    communication_hint="ring",
                )
            with tf.control_dependencies([y]), tf.control_dependencies(self._limit.turn()):
                return tf.identity(y)

    def _numbered(self, name: str) -> str:
        if tf.executing_eagerly():
            return f"{name}#1"  # a worker outside of a step then meets workers that begin one
        uses = self._uses.setdefault(function_graph(), collections.Counter())
        uses[name] += 1
        return f"{name}#{uses[name]}"


def _instance_key(name: str, x: tf.Tensor) -> tf.Tensor:
    """Returns a number for a name, dtype and shape: the same for static and dynamic shapes."""
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


class WaitLimit:
    """Aborts collectives when one has waited for more than some seconds.

    The attribute `timeout_seconds` of TensorFlow's collectives does that too, but keeps a thread
    asleep for the whole time per collective, even after the collective has ended. With hundreds of
    collectives per second and a limit of minutes, a machine runs out of threads. Here a counter
    goes up before and after each collective, and one thread checks it.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        with tf.device("/device:CPU:0"):
            self._turns = tf.Variable(0, trainable=False, dtype=tf.int64)  # odd while one waits
        self._end = threading.Event()
        threading.Thread(target=self._watch, name="tlo.distribute", daemon=True).start()
        atexit.register(self._end.set)

    def turn(self) -> list[tf.Operation]:
        """Counts the begin or the end of a collective; in a graph returns the op that counts."""
        said = tf.raw_ops.AssignAddVariableOp(
            resource=self._turns.handle, value=tf.constant(1, tf.int64)
        )
        return [] if said is None else [said]

    def _watch(self) -> None:
        turns, since = 0, time.monotonic()
        while not self._end.wait(min(_SOONEST, self._seconds / 4)):
            now = int(self._turns.numpy())
            if now != turns or now % 2 == 0:
                turns, since = now, time.monotonic()
            elif time.monotonic() - since > self._seconds:
                abort_collectives(
                    tf.errors.DEADLINE_EXCEEDED,
                    f"a collective has waited for more than {self._seconds:g} seconds, the "
                    "step_timeout of tlo.distribute.connect: some worker runs, but does not take "
                    "part. It may wait for its data, or have gone on after an error",
                )
                return
