# SPDX-License-Identifier: Apache-2.0
"""Workers: the workers of all connected processes, which act as one."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tfx_largeout.distribute.meeting import together
from tfx_largeout.distribute.workers import Workers as Connected
from tfx_largeout.hessian_free.flat_parameters import FlatParameters
from tfx_largeout.hessian_free.worker import LossTotal, VectorTotal, Worker

_CHECK_SUM = 2**53  # below it float64 has all integers


class _Said(NamedTuple):
    """What each process says in a call, as float64."""

    failed: float
    given: float
    loss: float
    weight: float
    squares: float
    micro_batches: float


class Workers(Worker):
    """The sums over the examples of all processes that `tlo.distribute.connect` has joined.

    Each process calls the same methods with the same arguments and computes the sums over a part of
    the sample with a worker of its own. One collective a call adds them up: all get the same
    numbers, bit by bit, and so take the same steps.

    A sample is dealt in runs of neighbouring examples whose sizes differ by one at most; where
    micro-batches count, in whole ones, so that they are those of one process. A process that gets
    none sends zeros. If computing fails in one process, the call fails in all of them.

    Cost: of R processes, one receives in a call 2 (R - 1) / R (4 n + 72 R) bytes with n weights in
    float32, twice as many in float64; n = 0 for a loss.

    Args:
        worker: That of this process.
        connected: The processes: `tlo.distribute.current()`.
        parameters: The weights of the model.
        batch_size: That of `worker`, which bounds its micro-batches, at least 1.
        sharded: Whether `worker` has a part of the examples, and each other process another part,
            counted one process after the other. Then each takes those of a sample that it has.
            Default False: all have the same ones.

    Raises:
        RuntimeError: In a call: its arguments are not the same in all processes.
    """

    def __init__(
        self,
        worker: Worker,
        connected: Connected,
        parameters: FlatParameters,
        batch_size: int,
        sharded: bool = False,
    ) -> None:
        self._worker, self._connected, self._parameters = worker, connected, parameters
        self._batch_size = batch_size
        self._starts = _starts(worker.num_examples, connected) if sharded else None
        self._theta_bits = 0
        self._sample = np.zeros([0], np.int64)
        self._held: np.ndarray | None = None

    @property
    def num_examples(self) -> int:
        return self._worker.num_examples if self._starts is None else int(self._starts[-1])

    def set_parameters(self, parameters: tf.Tensor) -> None:
        self._theta_bits = _bits(parameters)
        self._worker.set_parameters(parameters)

    def loss(self, numbers: np.ndarray) -> LossTotal:
        own = self._own(numbers, self._places(numbers))

        def compute() -> VectorTotal:
            return self._zeros(0)._replace(**self._worker.loss(own)._asdict())

        total = self._sum("loss", 0, compute if len(own) else None, _bits(numbers))
        return LossTotal(total.loss, total.weight)

    def gradient(self, numbers: np.ndarray, micro_batch: int | None = None) -> VectorTotal:
        own = self._own(numbers, self._places(numbers, micro_batch))

        def compute() -> VectorTotal:
            return self._worker.gradient(own, micro_batch)

        size = self._parameters.size
        return self._sum("gradient", size, compute if len(own) else None, _bits(numbers))

    def hold(self, numbers: np.ndarray) -> None:
        self._sample, self._held = numbers, None

    def product(self, vector: tf.Tensor) -> VectorTotal:
        places = self._places(self._sample)

        def compute() -> VectorTotal:
            self._hold(places)
            return self._worker.product(vector)

        size = self._parameters.size
        return self._sum("product", size, compute if len(places) else None, _bits(vector))

    def squared_gradients(self, signs: np.ndarray, micro_batch: int) -> VectorTotal:
        places = self._places(self._sample, micro_batch)

        def compute() -> VectorTotal:
            self._hold(places)
            return self._worker.squared_gradients(signs[places], micro_batch)

        size, given = self._parameters.size, _bits(np.asarray(signs, np.float64))
        return self._sum("squares", size, compute if len(places) else None, given)

    def _places(self, numbers: np.ndarray, micro_batch: int | None = None) -> np.ndarray:
        """Returns where in a sample the examples are that this process takes."""
        size, rank = self._connected.size, self._connected.rank
        if self._starts is not None:
            first, end = self._starts[rank : rank + 2]
            return np.flatnonzero((numbers >= first) & (numbers < end))
        places = np.arange(len(numbers))
        if micro_batch is None:
            return np.array_split(places, size)[rank]
        return places[places // min(micro_batch, self._batch_size) % size == rank]

    def _own(self, numbers: np.ndarray, places: np.ndarray) -> np.ndarray:
        """Returns the numbers that some examples of a sample have in this process."""
        first = 0 if self._starts is None else self._starts[self._connected.rank]
        return numbers[places] - first

    def _hold(self, places: np.ndarray) -> None:
        """Lets the worker hold these examples of the sample, unless it does."""
        if self._held is None or not np.array_equal(places, self._held):
            self._worker.hold(self._own(self._sample, places))
            self._held = places

    def _zeros(self, size: int) -> VectorTotal:
        return VectorTotal(tf.zeros([size], self._parameters.dtype), 0.0, 0.0, 0.0, 0)

    def _sum(
        self, call: str, size: int, compute: Callable[[], VectorTotal] | None, given: int
    ) -> VectorTotal:
        """Returns the sum over processes of what they compute.

        Args:
            call: The name of the method.
            size: Of the vectors; 0 with a loss.
            compute: Returns the sums over the part of this process; None: it has no example.
            given: A check sum of the arguments of the method.
        """
        error: Exception | None = None
        total = None
        try:
            total = compute() if compute else None
        except Exception as raised:
            error = raised
        total = total or self._zeros(size)
        given = (3 * given + 5 * self._theta_bits + 7 * _bits(self._sample)) % _CHECK_SUM
        said = _Said(
            error is not None, given, total.loss, total.weight, total.squares, total.micro_batches
        )
        vector, heard = self._exchange(call, total.vector, said)
        if any(each.failed for each in heard):
            together(self._connected, f"hessian_free, a {call}", lambda: _raise(error))
        self._check_given(call, [int(each.given) for each in heard])
        return VectorTotal(
            vector,
            sum(each.loss for each in heard),
            sum(each.weight for each in heard),
            sum(each.squares for each in heard),
            int(sum(each.micro_batches for each in heard)),
        )

    def _exchange(self, call: str, vector: tf.Tensor, said: _Said) -> tuple[tf.Tensor, list[_Said]]:
        """Returns the sum of vectors, and what each process says: in one collective.

        Behind the vector is a place for each process, where all others have zeros.
        """
        connected = self._connected
        places = np.zeros([connected.size, 3 * len(said)])
        places[connected.rank] = pieces(np.array(said, np.float64))
        sent = tf.concat([vector, tf.constant(places.ravel(), vector.dtype)], axis=0)
        heard = connected.sum(sent, f"hessian_free/{call}")
        size = len(vector)
        said_by = heard[size:].numpy().reshape(places.shape)
        return heard[:size], [_Said(*floats(each).tolist()) for each in said_by]

    def _check_given(self, call: str, given: list[int]) -> None:
        if len(set(given)) > 1:
            raise RuntimeError(
                f"a {call} must be of the same weights, vector and examples on all workers; got "
                f"check sums {given} by worker (this is worker {self._connected.rank}). Either "
                "something has changed them on one worker alone, or the workers round otherwise: "
                "give all of them the same kind of processor and as many threads"
            )


def _starts(examples: int, connected: Connected) -> np.ndarray:
    """Returns the number of the first example of each process, and behind it of all."""
    sizes = connected.gather(tf.constant([examples], tf.int64), "hessian_free/examples")
    return np.concatenate([[0], np.cumsum(sizes.numpy().ravel())])


def _bits(array: np.ndarray | tf.Tensor) -> int:
    """Returns the sum of the bits of numbers of 4 or 8 bytes, as integers."""
    words = np.ascontiguousarray(array).view(np.uint32)
    return int(words.sum(dtype=np.uint64))


def _raise(error: Exception | None) -> None:
    if error is not None:
        raise error


_BITS = 22  # of a piece; float32 has all integers below 2^24
_SHIFTS = np.arange(0, 64, _BITS, dtype=np.uint64)


def pieces(values: np.ndarray) -> np.ndarray:
    """Returns three integers below 2^22 a value, `[3 k]` float64, for values `[k]` float64.

    Plus zero, in any floating dtype of 22 bits or more, each stays what it is; the bits of the
    value themselves, as a float32, may not (NaN, -0.0, subnormal numbers).
    """
    bits = np.ascontiguousarray(values, np.float64).view(np.uint64)
    return ((bits[:, None] >> _SHIFTS) % np.uint64(2**_BITS)).astype(np.float64).ravel()


def floats(values: np.ndarray) -> np.ndarray:
    """Returns the values `[k]` float64 of which these are the pieces `[3 k]`, bit by bit."""
    parts = values.reshape([-1, len(_SHIFTS)]).astype(np.uint64)
    return (parts << _SHIFTS).sum(axis=1, dtype=np.uint64).view(np.float64)
