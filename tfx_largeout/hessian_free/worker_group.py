# SPDX-License-Identifier: Apache-2.0
"""WorkerGroup: several workers that act as one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import tensorflow as tf

from tfx_largeout.hessian_free.worker import LossTotal, VectorTotal, Worker


class WorkerGroup(Worker):
    """The examples of the first worker, then those of the second, and so on.

    Cost: one sum of vectors `[n]` a worker and call. Workers are asked one after the other; those
    that compute elsewhere may answer with what they have begun in `set_parameters` and `hold`.

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
        self._held = [0] * len(workers)

    @property
    def num_examples(self) -> int:
        return int(self._ends[-1])

    def set_parameters(self, parameters: tf.Tensor) -> None:
        for worker in self._workers:
            worker.set_parameters(parameters)

    def loss(self, numbers: np.ndarray) -> LossTotal:
        parts = zip(self._workers, self._parts(numbers), strict=True)
        totals = [worker.loss(part) for worker, part in parts if len(part)]
        return LossTotal(sum(t.loss for t in totals), sum(t.weight for t in totals))

    def gradient(self, numbers: np.ndarray, micro_batch: int | None = None) -> VectorTotal:
        parts = zip(self._workers, self._parts(numbers), strict=True)
        return _sum(worker.gradient(part, micro_batch) for worker, part in parts if len(part))

    def hold(self, numbers: np.ndarray) -> None:
        parts = self._parts(numbers)
        self._held = [len(part) for part in parts]
        for worker, part in zip(self._workers, parts, strict=True):
            worker.hold(part)

    def product(self, vector: tf.Tensor) -> VectorTotal:
        workers = zip(self._workers, self._held, strict=True)
        return _sum(worker.product(vector) for worker, held in workers if held)

    def squared_gradients(self, signs: np.ndarray, micro_batch: int) -> VectorTotal:
        parts = np.split(signs, np.cumsum(self._held)[:-1])
        workers = zip(self._workers, parts, strict=True)
        return _sum(
            worker.squared_gradients(part, micro_batch) for worker, part in workers if len(part)
        )

    def _parts(self, numbers: np.ndarray) -> list[np.ndarray]:
        """The numbers of each worker's own examples, counted from 0."""
        places = np.searchsorted(numbers, self._ends)
        starts = np.concatenate([[0], self._ends[:-1]])
        return [
            part - start for part, start in zip(np.split(numbers, places[:-1]), starts, strict=True)
        ]


def _sum(totals: Iterable[VectorTotal]) -> VectorTotal:
    first, *others = totals
    for other in others:
        first = VectorTotal(*(a + b for a, b in zip(first, other, strict=True)))
    return first
