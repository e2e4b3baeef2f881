# SPDX-License-Identifier: Apache-2.0
"""Workers: processes that train a model together, and their collectives."""

from __future__ import annotations

from typing import Any, TypeVar

import tensorflow as tf

from tfx_largeout.distribute.packed_numbers import packed, unpacked

_SMALL = 2**16  # received bytes per worker below which hops cost more

Choice = TypeVar("Choice")


class Workers:
    """The workers that train together; all communication goes through this class.

    All workers must call the same methods in the same order, with tensors of the same shape. Each
    call has a name. A transport defines `gather`, `add_up` and `exchange`; the rest is made of
    these. `Alone` stands for one process.

    Workers may be divided into groups. A group holds all classes, each worker a part of them, and
    gets a part of the batch. Workers of the same rank in their groups hold the same classes: they
    are replicas.

    Args:
        size: The number of workers R.
        rank: The number of this worker.
        wire_dtype: The dtype in which float32 activations and gradients are sent, float32 or
            bfloat16.

    Attributes:
        everyone: All workers, of all groups.
        group: The group of this worker. Without groups: all workers.
    """

    def __init__(self, size: int, rank: int = 0, wire_dtype: tf.DType = tf.float32) -> None:
        self.size, self.rank, self.wire_dtype = size, rank, wire_dtype
        self.everyone: Workers = self
        self.group: Workers = self
        self._replicas: Workers | None = None

    @property
    def replicas(self) -> Workers:
        """The workers that hold the same classes as this one, in the order of their groups."""
        return self._replicas or ALONE

    @property
    def alone(self) -> bool:
        """Whether there is only one worker. For use in this folder only."""
        return self.everyone.size == 1

    def divide(self, data_replicas: int) -> None:
        """Divides the workers into groups of equal size and of consecutive ranks."""
        members = self.size // data_replicas
        group, place = divmod(self.rank, members)
        self.group = self.some(range(group * members, (group + 1) * members))
        self._replicas = self.some(range(place, self.size, members))
        self.group._replicas = self._replicas
        self.group.everyone = self._replicas.everyone = self

    def some(self, ranks: range) -> Workers:
        """Returns the workers of some ranks, this one among them, as workers 0, 1, ..."""
        raise NotImplementedError

    def gather(self, x: tf.Tensor, name: str) -> tf.Tensor:
        """Returns the x of all workers, `[R, ...]`; not bfloat16, not bool. No gradient."""
        raise NotImplementedError

    def add_up(self, x: tf.Tensor, name: str) -> tf.Tensor:
        """Returns the sum over workers. No gradient."""
        raise NotImplementedError

    def add_up_large(self, x: tf.Tensor, name: str) -> tf.Tensor:
        """As `add_up`, for x that is not small."""
        return self.add_up(x, name)

    def exchange(self, x: tf.Tensor, name: str) -> tf.Tensor:
        """Sends row r of x to worker r; returns the rows sent to this worker, `[R, ...]`."""
        raise NotImplementedError

    def is_small(self, x: tf.Tensor) -> bool:
        """Whether x of all workers is gathered sooner than its parts are added up on the way.

        A gather has half the hops of a sum. Rows of unknown number, of at most two dimensions, are
        numbers of examples, such as logits of labels.
        """
        if x.dtype == tf.bfloat16:  # is not gathered
            return False
        number = x.shape.num_elements()
        if number is None:
            return x.shape.rank is not None and x.shape.rank <= 2
        return (self.size - 1) * number * x.dtype.size <= _SMALL

    def sum(self, x: tf.Tensor, name: str) -> tf.Tensor:
        """Returns the sum over workers; the gradient is passed on unchanged.

        All workers compute the same from the sum, so its gradient is the same on all.
        """
        if not x.dtype.is_floating:
            return self.add_up(x, name)

        @tf.custom_gradient
        def run(x: tf.Tensor) -> Any:
            return self.add_up(x, name), lambda upstream: upstream

        return run(x)

    def log_sum_exp(self, x: tf.Tensor, name: str) -> tf.Tensor:
        """Returns log sum_r e^{x_r} over workers r; each worker gets its part of the gradient."""

        @tf.custom_gradient
        def run(x: tf.Tensor) -> Any:
            parts = tf.cast(self.gather(x, name), tf.float64)
            total = tf.cast(tf.reduce_logsumexp(parts, axis=0), x.dtype)
            return total, lambda upstream: upstream * tf.exp(x - total)

        return run(x)

    def share(self, x: tf.Tensor, name: str) -> tf.Tensor:
        """Returns x, which is the same on all workers; the gradient is summed over workers.

        For x that is used only with this worker's classes: each worker has a part of the gradient.
        """

        @tf.custom_gradient
        def run(x: tf.Tensor) -> Any:
            return tf.identity(x), lambda upstream: self.add_up(upstream, "of/" + name)

        return run(x)

    def by_group(self, x: tf.Tensor) -> tf.Tensor:
        """Returns x, the same on all workers; multiplies the gradient by the number of groups.

        Each group computes the gradient of its part of the batch. Then the mean over workers, as
        `DataParallel` computes it, is the sum over the groups.
        """
        if self.replicas.alone:
            return x

        @tf.custom_gradient
        def run(x: tf.Tensor) -> Any:
            groups = tf.constant(self.replicas.size, x.dtype)
            return tf.identity(x), lambda upstream: upstream * groups

        return run(x)

    def sum_of_own(self, x: tf.Tensor, name: str) -> tf.Tensor:
        """Returns the sum over workers of their row for this worker, `[...]` from `[R, ...]`.

        Terms are sent in `wire_dtype`, and added in x's dtype.
        """
        terms = self.exchange(tf.cast(x, self.sent_dtype(x.dtype)), name)
        return tf.reduce_sum(tf.cast(terms, x.dtype), axis=0)

    def sum_of_gradients(self, x: tf.Tensor, name: str) -> tf.Tensor:
        """Returns the sum over workers of `[n]`, bitwise the same on all. No gradient.

        In bfloat16 each worker adds up its part of the terms in float32 and sends the sum, so that
        a number is rounded twice for any R. Small sums are not rounded.
        """
        if x.shape.is_fully_defined() and self.is_small(x):
            return self.add_up(x, name)
        if self.sent_dtype(x.dtype) == x.dtype:
            return self.add_up_large(x, name)
        n = tf.size(x)
        padded = tf.pad(x, [[0, -n % (2 * self.size)]])
        sums = self.sum_of_own(tf.reshape(padded, [self.size, -1]), name)
        every = unpacked(self.gather(packed(sums[tf.newaxis], tf.bfloat16), name), tf.bfloat16)
        return tf.cast(tf.reshape(every, [-1])[:n], x.dtype)

    def sent_dtype(self, dtype: tf.DType) -> tf.DType:
        """Returns the dtype in which activations and gradients of a dtype are sent."""
        return self.wire_dtype if dtype == tf.float32 else dtype

    def first(self, x: tf.Tensor, name: str) -> tf.Tensor:
        """Returns the x of worker 0. No gradient."""
        return self.add_up(x if self.rank == 0 else tf.zeros_like(x), "first/" + name)

    def any(self, x: tf.Tensor, name: str) -> tf.Tensor:
        """Returns whether x, of bool, is True on some worker."""
        return self.sum(tf.cast(x, tf.int32), name) > 0

    def longest(self, x: tf.Tensor, name: str) -> tf.Tensor:
        """Returns the maximum over workers. No gradient."""
        return tf.reduce_max(self.gather(x, name), axis=0)

    def largest(self, x: tf.Tensor, place: tf.Tensor, name: str) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the maximum of x over workers, and its place; -1 if another worker has it."""
        everybody = self.gather(tf.stop_gradient(x), name + "_of_each")
        is_here = tf.equal(tf.argmax(everybody, axis=0), self.rank)
        place = tf.where(is_here, place, tf.constant(-1, place.dtype))
        return self.sum(tf.where(is_here, x, 0), name), place

    def pick(self, alone: Choice, several: Choice) -> Choice:
        """Returns the first of two for a single process, the second for several workers."""
        return several

    def refuse_several(self, message: str, error: type[Exception] = RuntimeError) -> None:
        """Raises an error: the call works only in a single process."""
        # Keras ignores a NotImplementedError in a layer's build, as of a layer without shapes.
        raise error(message)


class Alone(Workers):
    """A single process: each method returns its argument, without an op."""

    def __init__(self) -> None:
        super().__init__(1)

    def gather(self, x: tf.Tensor, name: str) -> tf.Tensor:
        return x[tf.newaxis]

    def _given(self, x: tf.Tensor, name: str) -> tf.Tensor:
        return x

    add_up = exchange = sum = log_sum_exp = share = first = any = longest = _given

    def largest(self, x: tf.Tensor, place: tf.Tensor, name: str) -> tuple[tf.Tensor, tf.Tensor]:
        return x, place

    def pick(self, alone: Choice, several: Choice) -> Choice:
        return alone

    def refuse_several(self, message: str, error: type[Exception] = RuntimeError) -> None:
        pass


ALONE = Alone()
_connected: Workers = ALONE


def current() -> Workers:
    """Returns the workers that this process is connected to, or `Alone`."""
    return _connected


def set_current(workers: Workers) -> None:
    """Sets the workers of the process."""
    global _connected
    _connected = workers


def require_alone(what: str) -> None:
    """Raises a RuntimeError if the process is one of several workers."""
    _connected.refuse_several(
        f"{what} must run in a single process; got {_connected.size} workers. See "
        "docs/guides/several_workers.md for what works with several."
    )
