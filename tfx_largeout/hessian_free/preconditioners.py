# SPDX-License-Identifier: Apache-2.0
"""Preconditioners of conjugate gradients: none, Martens' diagonal, and L-BFGS."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tfx_largeout.arguments import integer_argument, number_argument
from tfx_largeout.hessian_free.conjugate_gradient import CurvaturePairs

_LEAST_COSINE = 1e-10


class Preconditioner:
    """An approximate inverse M of B = G + lambda I, applied to residuals: z = M r.

    The trainer calls `prepare` before each run of conjugate gradients, and `observe` after it. It
    can also be the `preconditioner` argument of `conjugate_gradient`.

    `num_pairs` is the number of pairs (s, y) that it observes.
    """

    num_pairs = 0

    def prepare(self, damping: float, squared_gradients: Callable[[], tf.Tensor]) -> None:
        """Prepares for a run.

        Args:
            damping: lambda of the run.
            squared_gradients: Returns the mean over the curvature sample of the squared gradients
                of single examples, `[n]`. It costs a gradient, so call it only if needed.
        """

    def observe(self, pairs: CurvaturePairs, damping: float) -> None:
        """Takes the pairs of a finished run.

        Args:
            pairs: (s, y = (G + lambda I) s).
            damping: lambda of this run.
        """

    def __call__(self, residual: tf.Tensor) -> tf.Tensor:
        """Returns z = M r, `[n]`, for r `[n]`."""
        raise NotImplementedError

    def state(self) -> dict[str, Any]:
        """Returns the state to save, as arrays by name."""
        return {}

    def restore(self, state: dict[str, np.ndarray]) -> None:
        """Restores the result of `state`."""


class IdentityPreconditioner(Preconditioner):
    """M = I: plain conjugate gradients."""

    def __call__(self, residual: tf.Tensor) -> tf.Tensor:
        return residual


class DiagonalPreconditioner(Preconditioner):
    """M = (diag(f) + lambda I)^-xi, with f the mean of the squared gradients of the examples.

    f is the diagonal of the empirical Fisher matrix. It is close to the diagonal of G if the
    model's probabilities are accurate, and costs one gradient instead of n products.

    Cost: a gradient on the curvature sample before each run; one pass over `[n]` per application.

    Args:
        exponent: xi in (0, 1]; values below 1 dampen extreme entries. Default 0.75.

    Raises:
        ValueError: `exponent` is out of range.

    Deviations: Martens computes f for dense layers from their inputs and deltas. Here, for any
        model, f is an unbiased estimate from gradients of micro-batches whose examples have random
        signs (exact if a micro-batch is one example).

    References:
        Martens 2010, Deep learning via Hessian-free optimization, section 4.7.
    """

    def __init__(self, exponent: float = 0.75) -> None:
        self.exponent = number_argument("exponent", exponent, above=0, at_most=1)
        self._inverse: tf.Tensor | None = None

    def prepare(self, damping: float, squared_gradients: Callable[[], tf.Tensor]) -> None:
        self._inverse = (squared_gradients() + damping) ** -self.exponent

    def __call__(self, residual: tf.Tensor) -> tf.Tensor:
        return residual if self._inverse is None else self._inverse * residual


class LBFGSPreconditioner(Preconditioner):
    """M = the L-BFGS matrix of up to m pairs of the previous run.

    From pairs s_i, y_i, oldest first, and M_0 = gamma I with gamma = s^T y / y^T y of the last,

        M_{i+1} = (I - rho_i s_i y_i^T) M_i (I - rho_i y_i s_i^T) + rho_i s_i s_i^T,
        rho_i = 1 / y_i^T s_i

    The matrix of all pairs is applied at once, in its compact form: with the s_i and y_i as columns
    of S and Y, R the upper triangle of S^T Y and D its diagonal,

        M = gamma I + [S, gamma Y] [[R^-T (D + gamma Y^T Y) R^-1, -R^-T], [-R^-1, 0]] [S, gamma Y]^T

    Pairs come from the previous run: within a run, each residual is orthogonal to all earlier
    steps, so pairs of the same run would have no effect. If the damping has changed since, B has
    changed by (lambda - lambda_pairs) I, so y_i is corrected by (lambda - lambda_pairs) s_i. Pairs
    with s^T y <= 1e-10 |s| |y| are left out. Before the first pairs M = I.

    Cost: 4 m n multiplications and additions per application (a Gauss-Newton product has about 10 n
    per example); 2 m n numbers of memory, and as many for the corrected copies.

    Args:
        num_pairs: m >= 1. Default 32.

    Raises:
        ValueError: `num_pairs` is not an integer of at least 1.

    Deviations: the paper changes the preconditioner within a run; see above.

    References:
        Sainath et al. 2013, Algorithm 2 and section 3.1.2.
        Morales, Nocedal 2000, Automatic Preconditioning by Limited Memory Quasi-Newton Updating.
        Byrd, Nocedal, Schnabel 1994, Representations of quasi-Newton matrices, theorem 2.2.
    """

    def __init__(self, num_pairs: int = 32) -> None:
        self.num_pairs = integer_argument("num_pairs", num_pairs, at_least=1)
        self._pairs: CurvaturePairs | None = None
        self._pairs_damping = 0.0
        self._matrix: _CompactInverse | None = None

    def prepare(
        self, damping: float, squared_gradients: Callable[[], tf.Tensor] | None = None
    ) -> None:
        self._matrix = None
        if self._pairs is None:
            return
        steps, change = tf.stack(self._pairs.steps), damping - self._pairs_damping
        differences = tf.stack(self._pairs.differences) + change * steps
        length, products = tf.norm(steps, axis=1), tf.reduce_sum(steps * differences, axis=1)
        good = products > _LEAST_COSINE * length * tf.norm(differences, axis=1)
        if not tf.reduce_any(good):
            return
        # Scaling a pair does not change the matrix; with unit length, rounding is similar.
        scale = (1 / length[good])[:, tf.newaxis]
        self._matrix = _CompactInverse(steps[good] * scale, differences[good] * scale)

    def observe(self, pairs: CurvaturePairs, damping: float) -> None:
        if len(pairs):
            self._pairs, self._pairs_damping = pairs, damping

    def __call__(self, residual: tf.Tensor) -> tf.Tensor:
        return residual if self._matrix is None else self._matrix.times(residual)

    def state(self) -> dict[str, Any]:
        if self._pairs is None:
            return {}
        return {
            "steps": np.stack(self._pairs.steps),
            "differences": np.stack(self._pairs.differences),
            "damping": np.float64(self._pairs_damping),
        }

    def restore(self, state: dict[str, np.ndarray]) -> None:
        self._pairs, self._matrix = None, None
        if state:
            vectors = (list(map(tf.constant, state[name])) for name in ("steps", "differences"))
            self.observe(CurvaturePairs.of(*vectors), float(state["damping"]))


class _CompactInverse:
    """The matrix M of steps S^T and differences Y^T `[m, n]`; small matrices are float64."""

    def __init__(self, steps: tf.Tensor, differences: tf.Tensor) -> None:
        self.steps, self.differences = steps, differences
        products = tf.cast(tf.matmul(steps, differences, transpose_b=True), tf.float64)
        squares = tf.cast(tf.matmul(differences, differences, transpose_b=True), tf.float64)
        diagonal = tf.linalg.diag_part(products)
        self.gamma = diagonal[-1] / squares[-1, -1]
        upper, one = tf.linalg.band_part(products, 0, -1), tf.eye(len(products), dtype=tf.float64)
        self.r_inverse = tf.linalg.triangular_solve(upper, one, lower=False)
        self.middle = tf.linalg.diag(diagonal) + self.gamma * squares

    def times(self, vector: tf.Tensor) -> tf.Tensor:
        """Returns M times a vector `[n]`."""
        by_steps = tf.cast(tf.linalg.matvec(self.steps, vector), tf.float64)
        by_differences = tf.cast(tf.linalg.matvec(self.differences, vector), tf.float64)
        lower = tf.linalg.matvec(self.r_inverse, by_steps)
        upper = tf.linalg.matvec(self.middle, lower) - self.gamma * by_differences
        upper = tf.linalg.matvec(self.r_inverse, upper, transpose_a=True)
        gamma = tf.cast(self.gamma, vector.dtype)
        combined = tf.linalg.matvec(self.steps, tf.cast(upper, vector.dtype), transpose_a=True)
        lower = tf.cast(lower, vector.dtype)
        combined -= gamma * tf.linalg.matvec(self.differences, lower, transpose_a=True)
        return gamma * vector + combined
