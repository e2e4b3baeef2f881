# SPDX-License-Identifier: Apache-2.0
"""LocalWorker: a worker in this process."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import tensorflow as tf

from tfx_largeout.arguments import integer_argument
from tfx_largeout.hessian_free.curvature import Curvature
from tfx_largeout.hessian_free.examples import Batch, Examples
from tfx_largeout.hessian_free.worker import LossTotal, VectorTotal, Worker


class LocalWorker(Worker):
    """Examples in memory, and a model in this process.

    Args:
        curvature: The curvature of the model. Several workers may share one.
        examples: What it holds.
        batch_size: Examples that go through the model at a time, at least 1. Default 1024. It
            bounds the memory: with C classes, a product has a few tensors `[batch_size, C]`.

    Raises:
        ValueError: `batch_size` is not an integer of at least 1.
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

    def loss(self, numbers: np.ndarray) -> LossTotal:
        sums = [self._curvature.loss(*batch) for batch in self._batches(numbers)]
        return LossTotal(_total(s.loss for s in sums), _total(s.weight for s in sums))

    def gradient(self, numbers: np.ndarray, micro_batch: int | None = None) -> VectorTotal:
        total = self._nothing()
        for batch in self._batches(numbers, micro_batch):
            sums = self._curvature.gradient(*batch)
            squares = tf.reduce_sum(sums.vector**2) / tf.cast(len(batch[2]), sums.vector.dtype)
            total = VectorTotal(
                total.vector + sums.vector,
                total.loss + float(sums.loss),
                total.weight + float(sums.weight),
                total.squares + float(squares),
                total.micro_batches + 1,
            )
        return total

    def hold(self, numbers: np.ndarray) -> None:
        self._numbers, self._held = numbers, list(self._batches(numbers))

    def product(self, vector: tf.Tensor) -> VectorTotal:
        total = self._nothing()
        for batch in self._held:
            sums = self._curvature.product(*batch, vector)
            total = total._replace(
                vector=total.vector + sums.vector, weight=total.weight + float(sums.weight)
            )
        return total

    def squared_gradients(self, signs: np.ndarray, micro_batch: int) -> VectorTotal:
        total, start = self._nothing(), 0
        for x, y, weights in self._batches(self._numbers, micro_batch):
            part = signs[start : start + len(weights)]
            part = part.reshape([-1] + [1] * (weights.shape.rank - 1))
            sums = self._curvature.gradient(x, y, weights * tf.cast(part, weights.dtype))
            counts = self._curvature.loss(x, y, weights).weight
            total = total._replace(
                vector=total.vector + sums.vector**2, weight=total.weight + float(counts)
            )
            start += len(weights)
        return total

    def _batches(self, numbers: np.ndarray, size: int | None = None) -> Iterator[Batch]:
        size = min(size or self._batch_size, self._batch_size)
        for start in range(0, len(numbers), size):
            yield self._examples.take(numbers[start : start + size])

    def _nothing(self) -> VectorTotal:
        parameters = self._curvature.parameters
        return VectorTotal(tf.zeros([parameters.size], parameters.dtype), 0.0, 0.0, 0.0, 0)


def _total(values: Iterator[tf.Tensor]) -> float:
    return float(sum(float(value) for value in values))
