# SPDX-License-Identifier: Apache-2.0
"""A limit to how long a collective waits for the other workers."""

from __future__ import annotations

import atexit
import threading
import time

import tensorflow as tf

from tfx_largeout.tensorflow_internals import abort_collectives

_SOONEST = 1.0  # seconds between two looks


class WaitLimit:
    """Aborts collectives when one has waited for too long.

    The attribute `timeout_seconds` of TensorFlow's collectives does that too, but keeps a thread
    asleep for that long for each collective, also when it has ended: some hundred collectives a
    second and a limit of some minutes are more threads than a machine has. Here a counter goes up
    before and after each collective, and one thread looks at it.

    Args:
        seconds: The limit.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        with tf.device("/device:CPU:0"):
            self._turns = tf.Variable(0, trainable=False, dtype=tf.int64)  # odd while one waits
        self._end = threading.Event()
        threading.Thread(target=self._watch, name="tlo.distribute", daemon=True).start()
        atexit.register(self._end.set)

    def turn(self) -> list[tf.Operation]:
        """Says that a collective begins, or has ended; in a graph returns the op that says it."""
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
                self._abort()
                return

    def _abort(self) -> None:
        abort_collectives(
            tf.errors.DEADLINE_EXCEEDED,
            f"a collective has waited for more than {self._seconds:g} seconds, the step_timeout of "
            "tlo.distribute.connect: some worker runs, but does not take part. It may wait for its "
            "data, or have gone on after an error",
        )
