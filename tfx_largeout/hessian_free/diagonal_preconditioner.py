# SPDX-License-Identifier: Apache-2.0
"""DiagonalPreconditioner: Martens' diagonal of squared gradients."""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

from tfx_largeout.arguments import number_argument
from tfx_largeout.hessian_free.preconditioner import Preconditioner


class DiagonalPreconditioner(Preconditioner):
    """M = (diag(f) + lambda I)^-xi, with f the mean of the squared gradients of the examples.

    f is the diagonal of the empirical Fisher matrix, which is near that of G where the model's
    probabilities are near the truth, and costs one gradient instead of n products.

    Cost: a gradient on the curvature sample before each run; one pass over `[n]` an application.

    Args:
        exponent: xi in (0, 1]; below 1 it evens out extreme entries. Default 0.75.

    Raises:
        ValueError: `exponent` is out of range.

    Deviations: Martens gets f for dense layers out of their inputs and deltas. Here, for any
        model, f is estimated without bias from gradients of micro-batches whose examples have
        random signs (exactly, where a micro-batch is one example).

    References:
        Martens 2010, Deep learning via Hessian-free optimization, section 4.7.
    """

    def __init__(self, exponent: float = 0.75) -> None:
        self.exponent = number_argument("exponent", exponent, above=0, below=1.0000001)
        self._inverse: tf.Tensor | None = None

    def prepare(self, damping: float, squared_gradients: Callable[[], tf.Tensor]) -> None:
        self._inverse = (squared_gradients() + damping) ** -self.exponent

    def __call__(self, residual: tf.Tensor) -> tf.Tensor:
        return residual if self._inverse is None else self._inverse * residual
