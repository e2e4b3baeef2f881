# SPDX-License-Identifier: Apache-2.0
"""Workers: sums of losses, gradients and products over their examples."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfx_largeout.arguments import integer_argument
from tfx_largeout.hessian_free.curvature import Curvature, LossSums
from tfx_largeout.hessian_free.examples import Batch, Examples


class VectorTotal(NamedTuple):
    """Sums over the examples of a sample; sums of several workers add up.

    Attributes:
        vector: `[n]`, the sum of gradients or products.
        loss: The sum of the weighted losses; 0 with products.
        weight: The divisor of both for means.
        squares: For the noise of the gradient: the sum over micro-batches of |gradient sum|^2 /
            examples; else 0.
        micro_batches: The number of micro-batches; 0 with products.
    """

    vector: tf.Tensor
    loss: float = 0.0
    weight: float = 0.0
    squares: float = 0.0
    micro_batches: int = 0


class Worker:
    """Computes sums over the examples it holds; the algorithm adds them up and divides.

    This is the whole interface of Hessian-free training to data and model: several workers, each
    with a part of the examples, form one (`WorkerGroup`; over processes, `OverWorkers`). Examples
    are numbered from 0 in each worker.
    """

    @property
    def num_examples(self) -> int:
        """The number of examples."""
        raise NotImplementedError

    def set_parameters(self, parameters: tf.Tensor) -> None:
        """Sets the weights of the model to theta `[n]` for all later calls."""
        raise NotImplementedError

    def loss(self, numbers: np.ndarray) -> LossSums:
        """Returns the sum of the losses of the examples with these numbers (ascending)."""
        raise NotImplementedError

    def gradient(self, numbers: np.ndarray, micro_batch: int | None = None) -> VectorTotal:
        """Returns the sum of the gradients of the examples with these numbers (ascending).

        Args:
            numbers: The numbers of the examples.
            micro_batch: The size of micro-batches for the squares. Default None: the fastest size.
        """
        raise NotImplementedError

    def hold(self, numbers: np.ndarray) -> None:
        """Sets the sample of the next products: the examples with these numbers."""
        raise NotImplementedError

    def product(self, vector: tf.Tensor) -> VectorTotal:
        """Returns the sum of Gauss-Newton products with `vector` `[n]` over the held sample."""
        raise NotImplementedError

    def squared_gradients(self, signs: np.ndarray, micro_batch: int) -> VectorTotal:
        """Returns the sum over micro-batches of the held sample of squared sums of gradients.

        With random signs, the expectation is the sum of the squared gradients of the examples.

        Args:
            signs: A factor 1 or -1 for the gradient of each example of the held sample.
            micro_batch: The number of gradients that are summed before squaring.
        """
        raise NotImplementedError


class LocalWorker(Worker):
    """Examples in memory, and a model in this process.

    Args:
        curvature: The curvature of the model. Several workers may share one.
        examples: The examples it holds.
        batch_size: Examples that go through the model at a time, an integer of at least 1. It
            bounds the memory: with C classes, a product has a few tensors `[batch_size, C]`.
    """

    def __init__(self, curvature: Curvature, examples: Examples, batch_size: int = 1024) -> None:
        self._curvature, self._examples = curvature, examples
        self._batch_size = integer_argument("batch_size", batch_size, at_least=1)
        self._held: list[Batch] = []
        self._numbers = np.zeros([0], np.int64)

    @property
    def num_examples(self) -> int:
        return len(self._examples)

    def set_parameters(self, parameters: tf.Tensor) -> None:
        self._curvature.parameters.assign(parameters)

    def loss(self, numbers: np.ndarray) -> LossSums:
        sums = [self._curvature.loss(*batch) for batch in self._batches(numbers)]
        return LossSums(sum(float(s.loss) for s in sums), sum(float(s.weight) for s in sums))

    def gradient(self, numbers: np.ndarray, micro_batch: int | None = None) -> VectorTotal:
        def of_batch(x: Any, y: tf.Tensor, weights: tf.Tensor) -> VectorTotal:
            vector, loss, weight = self._curvature.gradient(x, y, weights)
            squares = tf.reduce_sum(vector**2) / tf.cast(len(weights), vector.dtype)
            return VectorTotal(vector, float(loss), float(weight), float(squares), 1)

        return self._sum(of_batch(*batch) for batch in self._batches(numbers, micro_batch))

    def hold(self, numbers: np.ndarray) -> None:
        self._numbers, self._held = numbers, list(self._batches(numbers))

    def product(self, vector: tf.Tensor) -> VectorTotal:
        sums = (self._curvature.product(*batch, vector) for batch in self._held)
        return self._sum(VectorTotal(s.vector, weight=float(s.weight)) for s in sums)

    def squared_gradients(self, signs: np.ndarray, micro_batch: int) -> VectorTotal:
        def of_batch(batch: Batch, signs: np.ndarray) -> VectorTotal:
            x, y, weights = batch
            signs = signs.reshape([-1] + [1] * (weights.shape.rank - 1))
            sums = self._curvature.gradient(x, y, weights * tf.cast(signs, weights.dtype))
            weight = float(self._curvature.loss(x, y, weights).weight)
            return VectorTotal(sums.vector**2, weight=weight)

        batches = self._batches(self._numbers, micro_batch)
        return self._sum(map(of_batch, batches, self._parts(signs, micro_batch)))

    def _batches(self, numbers: np.ndarray, size: int | None = None) -> Iterator[Batch]:
        return map(self._examples.take, self._parts(numbers, size))

    def _parts(self, values: np.ndarray, size: int | None) -> Iterator[np.ndarray]:
        size = min(size or self._batch_size, self._batch_size)
        return (values[start : start + size] for start in range(0, len(values), size))

    def _sum(self, totals: Iterable[VectorTotal]) -> VectorTotal:
        parameters = self._curvature.parameters
        nothing = VectorTotal(tf.zeros([parameters.size], parameters.dtype))
        return functools.reduce(_added, totals, nothing)


class WorkerGroup(Worker):
    """Several workers as one: the examples of the first worker come first, and so on.

    Cost: one sum of vectors `[n]` per worker and call. Workers are called one after the other;
    remote ones may have started their work in `set_parameters` and `hold`.

    Args:
        workers: At least one.

    Raises:
        ValueError: There are no workers.
    """

    def __init__(self, workers: Sequence[Worker]) -> None:
        if not workers:
            raise ValueError("workers must have at least one element; got none")
        self._workers = list(workers)
        self._ends = np.cumsum([worker.num_examples for worker in workers])
        self._held: list[np.ndarray] = []

    @property
    def num_examples(self) -> int:
        return int(self._ends[-1])

    def set_parameters(self, parameters: tf.Tensor) -> None:
        for worker in self._workers:
            worker.set_parameters(parameters)

    def loss(self, numbers: np.ndarray) -> LossSums:
        totals = [worker.loss(own) for worker, own in self._busy(self._own(numbers))]
        return LossSums(sum(t.loss for t in totals), sum(t.weight for t in totals))

    def gradient(self, numbers: np.ndarray, micro_batch: int | None = None) -> VectorTotal:
        busy = self._busy(self._own(numbers))
        return functools.reduce(_added, (worker.gradient(own, micro_batch) for worker, own in busy))

    def hold(self, numbers: np.ndarray) -> None:
        self._held = self._own(numbers)
        for worker, own in zip(self._workers, self._held, strict=True):
            worker.hold(own)

    def product(self, vector: tf.Tensor) -> VectorTotal:
        busy = self._busy(self._held)
        return functools.reduce(_added, (worker.product(vector) for worker, _ in busy))

    def squared_gradients(self, signs: np.ndarray, micro_batch: int) -> VectorTotal:
        busy = self._busy(np.split(signs, np.cumsum(list(map(len, self._held)))[:-1]))
        totals = (worker.squared_gradients(own, micro_batch) for worker, own in busy)
        return functools.reduce(_added, totals)

    def _own(self, numbers: np.ndarray) -> list[np.ndarray]:
        """Returns the numbers of examples in each worker, counted from 0."""
        parts = np.split(numbers, np.searchsorted(numbers, self._ends)[:-1])
        return [part - start for part, start in zip(parts, [0, *self._ends[:-1]], strict=True)]

    def _busy(self, parts: list[np.ndarray]) -> Iterator[tuple[Worker, np.ndarray]]:
        """Yields the workers with a non-empty part, and this part."""
        pairs = zip(self._workers, parts, strict=True)
        return ((worker, part) for worker, part in pairs if len(part))


def _added(a: VectorTotal, b: VectorTotal) -> VectorTotal:
    return VectorTotal(*(x + y for x, y in zip(a, b, strict=True)))
