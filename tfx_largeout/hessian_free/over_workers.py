# SPDX-License-Identifier: Apache-2.0
"""OverWorkers: the workers of all connected processes, as one."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import tensorflow as tf

from tfx_largeout.distribute.meeting import together
from tfx_largeout.distribute.workers import Workers
from tfx_largeout.hessian_free.curvature import LossSums
from tfx_largeout.hessian_free.flat_parameters import FlatParameters
from tfx_largeout.hessian_free.worker import VectorTotal, Worker

_CHECK_SUM = 2**53  # below it float64 has all integers


class OverWorkers(Worker):
    """The sums over the examples of all processes that `tlo.distribute.connect` has joined.

    Each process calls the same methods with the same arguments and computes the sums over a part of
    the sample with its worker. One collective per call adds them up: all get the same numbers, bit
    for bit, and so take the same steps.

    A sample is split into runs of neighbouring examples whose sizes differ by at most one; if
    micro-batches matter, into whole micro-batches, as in one process. A process without examples
    sends zeros. If the computation fails in one process, the call fails in all of them.

    Cost: in each call, one of R processes receives 2 (R - 1) / R (4 n + 96 R) bytes with n weights
    in float32, and twice as many in float64; n = 0 for a loss.

    Args:
        worker: The worker of this process, for a model with `parameters` and for this `batch_size`.
        workers: The processes: `tlo.distribute.current()`.
        parameters, batch_size: See `worker`.
        sharded: Whether each process has a different part of the examples, numbered one process
            after the other. Then each computes on its own examples of a sample. Default False: all
            have the same examples.

    Raises:
        RuntimeError: In a call: its arguments are not the same in all processes.
    """

    def __init__(
        self,
        worker: Worker,
        workers: Workers,
        parameters: FlatParameters,
        batch_size: int,
        sharded: bool = False,
    ) -> None:
        self._worker, self._workers, self._parameters = worker, workers, parameters
        self._batch_size = batch_size
        self._starts: np.ndarray | None = None  # the first example of each process, and the end
        if sharded:
            examples = tf.constant(worker.num_examples, tf.int64)
            sizes = workers.gather(examples, "hessian_free/examples")
            self._starts = np.concatenate([[0], np.cumsum(sizes)])
        self._theta_bits = 0
        self._sample = np.zeros([0], np.int64)
        self._held: np.ndarray | None = None

    @property
    def num_examples(self) -> int:
        return self._worker.num_examples if self._starts is None else int(self._starts[-1])

    def set_parameters(self, parameters: tf.Tensor) -> None:
        self._theta_bits = _bits(parameters)
        self._worker.set_parameters(parameters)

    def loss(self, numbers: np.ndarray) -> LossSums:
        def compute(places: np.ndarray) -> VectorTotal:
            nothing = tf.zeros([0], self._parameters.dtype)
            return VectorTotal(nothing, *self._worker.loss(self._own(numbers, places)))

        total = self._sum("loss", 0, self._places(numbers), compute, numbers)
        return LossSums(total.loss, total.weight)

    def gradient(self, numbers: np.ndarray, micro_batch: int | None = None) -> VectorTotal:
        def compute(places: np.ndarray) -> VectorTotal:
            return self._worker.gradient(self._own(numbers, places), micro_batch)

        places = self._places(numbers, micro_batch)
        return self._sum("gradient", self._parameters.size, places, compute, numbers)

    def hold(self, numbers: np.ndarray) -> None:
        self._sample, self._held = numbers, None

    def product(self, vector: tf.Tensor) -> VectorTotal:
        def compute(places: np.ndarray) -> VectorTotal:
            self._hold(places)
            return self._worker.product(vector)

        places = self._places(self._sample)
        return self._sum("product", self._parameters.size, places, compute, vector)

    def squared_gradients(self, signs: np.ndarray, micro_batch: int) -> VectorTotal:
        def compute(places: np.ndarray) -> VectorTotal:
            self._hold(places)
            return self._worker.squared_gradients(signs[places], micro_batch)

        places = self._places(self._sample, micro_batch)
        return self._sum("squares", self._parameters.size, places, compute, signs)

    def _places(self, numbers: np.ndarray, micro_batch: int | None = None) -> np.ndarray:
        """Returns the positions in a sample of the examples of this process."""
        size, rank = self._workers.size, self._workers.rank
        if self._starts is not None:
            first, end = self._starts[rank : rank + 2]
            return np.flatnonzero((numbers >= first) & (numbers < end))
        places = np.arange(len(numbers))
        if micro_batch is None:
            return np.array_split(places, size)[rank]
        return places[places // min(micro_batch, self._batch_size) % size == rank]

    def _own(self, numbers: np.ndarray, places: np.ndarray) -> np.ndarray:
        """Returns the numbers in this process of some examples of a sample."""
        first = 0 if self._starts is None else self._starts[self._workers.rank]
        return numbers[places] - first

    def _hold(self, places: np.ndarray) -> None:
        """Makes the worker hold these examples of the sample, unless it already does."""
        if self._held is None or not np.array_equal(places, self._held):
            self._worker.hold(self._own(self._sample, places))
            self._held = places

    def _sum(
        self,
        call: str,
        size: int,
        places: np.ndarray,
        compute: Callable[[np.ndarray], VectorTotal],
        given: np.ndarray | tf.Tensor,
    ) -> VectorTotal:
        """Returns the sum of the vectors that processes compute for their positions."""
        error: Exception | None = None
        total = VectorTotal(tf.zeros([size], self._parameters.dtype))
        try:
            if len(places):
                total = compute(places)
        except Exception as raised:
            error = raised
        bits = 3 * _bits(given) + 5 * self._theta_bits + 7 * _bits(self._sample)
        said = pieces(np.array([error is not None, bits % _CHECK_SUM, *total[1:]], np.float64))
        # One collective: the vector is followed by a place per process, which is zero in all
        # others.
        places_of_all = np.zeros([self._workers.size, len(said)])
        places_of_all[self._workers.rank] = said
        behind = tf.constant(places_of_all.ravel(), total.vector.dtype)
        summed = self._workers.sum(tf.concat([total.vector, behind], 0), f"hessian_free/{call}")
        heard = floats(summed[size:].numpy()).reshape([self._workers.size, -1])
        if heard[:, 0].any():
            together(self._workers, f"hessian_free, a {call}", lambda: _raise(error))
        if len(set(heard[:, 1])) > 1:
            raise RuntimeError(
                f"a {call} must be of the same weights, vector and examples on all workers; got "
                f"check sums {heard[:, 1].astype(int).tolist()} by worker (this is worker "
                f"{self._workers.rank}). Either something has changed them on one worker alone, or "
                "the workers round otherwise: give all of them the same kind of processor and as "
                "many threads"
            )
        loss, weight, squares, micro_batches = sum(heard[:, 2:]).tolist()
        return VectorTotal(summed[:size], loss, weight, squares, int(micro_batches))


def _bits(array: np.ndarray | tf.Tensor) -> int:
    """Returns the sum of numbers of 4 or 8 bytes, read as integers."""
    words = np.ascontiguousarray(array).view(np.uint32)
    return int(words.sum(dtype=np.uint64))


def _raise(error: Exception | None) -> None:
    if error is not None:
        raise error


def pieces(values: np.ndarray) -> np.ndarray:
    """Returns values `[k]` float64 as four integers below 2^16 each, `[4 k]`.

    These don't change when 0 is added, in float32 or float64; the bits of the value read as a
    float32 might (NaN, -0.0, subnormal numbers).
    """
    return values.view(np.uint16).astype(np.float64)


def floats(values: np.ndarray) -> np.ndarray:
    """Returns the values `[k]` float64 of these pieces `[4 k]`, bit for bit."""
    return values.astype(np.uint16).view(np.float64)
