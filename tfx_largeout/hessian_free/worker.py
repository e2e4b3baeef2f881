# SPDX-License-Identifier: Apache-2.0
"""Worker: sums of losses, gradients and products over examples, wherever these are."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import tensorflow as tf


class LossTotal(NamedTuple):
    """Sums over the examples of a sample; those of several workers add up.

    Attributes:
        loss: The sum of the weighted losses.
        weight: By which to divide it for the mean loss.
    """

    loss: float
    weight: float


class VectorTotal(NamedTuple):
    """Sums over the examples of a sample; those of several workers add up.

    Attributes:
        vector: `[n]`, of gradients or products.
        loss: The sum of the weighted losses; 0 with products.
        weight: By which to divide both for means.
        squares: What the noise of the gradient is estimated from: the sum over micro-batches of
            |gradient sum|^2 / examples; else 0.
        micro_batches: The number of micro-batches; 0 with products.
    """

    vector: tf.Tensor
    loss: float
    weight: float
    squares: float
    micro_batches: int


class Worker:
    """Computes sums over examples that it holds; the algorithm adds them up and divides.

    This is all that Hessian-free training asks of data and model: several workers, each with a
    part of the examples, make one (`WorkerGroup`; over processes, `Workers`). Numbers of examples
    count from 0 in each worker.
    """

    @property
    def num_examples(self) -> int:
        """How many examples there are."""
        raise NotImplementedError

    def set_parameters(self, parameters: tf.Tensor) -> None:
        """Sets the weights of the model to theta `[n]`, for all that follows."""
        raise NotImplementedError

    def loss(self, numbers: np.ndarray) -> LossTotal:
        """Returns the sum of the losses of the examples of these numbers (ascending)."""
        raise NotImplementedError

    def gradient(self, numbers: np.ndarray, micro_batch: int | None = None) -> VectorTotal:
        """Returns the sum of the gradients of the examples of these numbers (ascending).

        Args:
            numbers: The numbers of the examples.
            micro_batch: In how many at a time the squares are to be taken. Default None: as is
                quickest.
        """
        raise NotImplementedError

    def hold(self, numbers: np.ndarray) -> None:
        """Fixes the sample of the products that follow: the examples of these numbers."""
        raise NotImplementedError

    def product(self, vector: tf.Tensor) -> VectorTotal:
        """Returns the sum of Gauss-Newton products with `vector` `[n]` over the held sample."""
        raise NotImplementedError

    def squared_gradients(self, signs: np.ndarray, micro_batch: int) -> VectorTotal:
        """Returns the sum over micro-batches of the held sample of squared sums of gradients.

        With random signs, the expectation is the sum of the squared gradients of the examples.

        Args:
            signs: One an example of the held sample, 1 or -1, by which its gradient is multiplied.
            micro_batch: How many gradients are summed before the sum is squared.
        """
        raise NotImplementedError
