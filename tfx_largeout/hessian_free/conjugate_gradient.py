# SPDX-License-Identifier: Apache-2.0
"""Flexible preconditioned conjugate gradients, with Martens' stop and intermediate iterates."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import NamedTuple

import tensorflow as tf

from tfx_largeout.arguments import integer_argument, number_argument

Product = Callable[[tf.Tensor], tf.Tensor]

_SMALLEST_TOLERANCE = {tf.float32: 1e-6, tf.float64: 1e-15}
_KEPT_AT = 1.3


class Iterate(NamedTuple):
    """An intermediate solution.

    Attributes:
        iteration: The number of iterations; 0 is the start.
        value: q(x) = x^T A x / 2 - b^T x.
        solution: x, `[n]`.
    """

    iteration: int
    value: float
    solution: tf.Tensor


class CurvaturePairs:
    """Keeps at most m pairs (s_i, y_i) of a run, evenly spread over it at any time.

    At first every pair is kept. When there are m, only pairs whose number is a multiple of twice
    the spacing are added, each replacing the first pair whose number is not; when none of these is
    left, the spacing has doubled. So the numbers of the pairs are always multiples of the spacing,
    or of twice the spacing, and memory holds m pairs.

    Args:
        capacity: m, an integer of at least 1.

    References:
        Morales, Nocedal 2000, Automatic Preconditioning by Limited Memory Quasi-Newton Updating,
        section 2 (pairs spread evenly over a run of conjugate gradients).
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = integer_argument("capacity", capacity, at_least=1)
        self._spacing = 1
        self._kept: dict[int, tuple[tf.Tensor, tf.Tensor]] = {}

    @classmethod
    def of(cls, steps: Iterable[tf.Tensor], differences: Iterable[tf.Tensor]) -> CurvaturePairs:
        """Creates pairs from vectors s_i and y_i, in the order of the run."""
        both = list(zip(steps, differences, strict=True))
        pairs = cls(max(len(both), 1))
        pairs._kept = dict(enumerate(both, start=1))
        return pairs

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def numbers(self) -> list[int]:
        """The numbers of the kept pairs in the run, from 1, ascending."""
        return list(self._kept)

    @property
    def steps(self) -> list[tf.Tensor]:
        """The vectors s_i `[n]`, oldest first."""
        return [s for s, _ in self._kept.values()]

    @property
    def differences(self) -> list[tf.Tensor]:
        """The vectors y_i `[n]`, oldest first."""
        return [y for _, y in self._kept.values()]

    def wants(self, number: int) -> bool:
        """Returns whether the pair with this number would be kept."""
        spacing = self._spacing if len(self) < self.capacity else 2 * self._spacing
        return number % spacing == 0

    def add(self, number: int, step: tf.Tensor, difference: tf.Tensor) -> None:
        """Keeps a wanted pair: s and y `[n]`; its number must be greater than the earlier ones."""
        if len(self) == self.capacity:
            del self._kept[self._between()[0]]
        self._kept[number] = (step, difference)
        if len(self) == self.capacity and not self._between():
            self._spacing *= 2

    def _between(self) -> list[int]:
        return [number for number in self._kept if number % (2 * self._spacing)]


class CGStatistics(NamedTuple):
    """Statistics of a run.

    Attributes:
        iterations: The number of iterations i.
        products: The number of products with A.
        reason: Why it ended: `"progress"` (Martens' stop), `"tolerance"`, `"iterations"` (the
            limit), `"curvature"` (p^T A p <= 0), `"preconditioner"` (r^T z <= 0) or `"not finite"`.
        residual_norm: |b - A x| of the solution, by the recursion.
        values: q(x_i), i = 0, 1, ...
        iterates: The iterates ceil(1.3^j), and the last one; never the start.
        pairs: (s_i, y_i) = (x_{i+1} - x_i, r_i - r_{i+1}), evenly spread; None if not requested.
    """

    iterations: int
    products: int
    reason: str
    residual_norm: float
    values: list[float]
    iterates: list[Iterate]
    pairs: CurvaturePairs | None


def conjugate_gradient(
    product: Product,
    b: tf.Tensor,
    x0: tf.Tensor | None = None,
    preconditioner: Product | None = None,
    max_iterations: int = 250,
    tolerance: float = 1e-6,
    progress: float = 5e-4,
    num_pairs: int = 0,
) -> tuple[tf.Tensor, CGStatistics]:
    """Solves A x = b for a symmetric positive definite A known by its products.

    With r = b - A x, z = M r and p = z to begin with, an iteration is

        alpha = r^T z / p^T A p,  x <- x + alpha p,  r_new = r - alpha A p,  z_new = M r_new
        beta = z_new^T (r_new - r) / r^T z,  p <- z_new + beta p

    beta is Polak's and Ribiere's, so that M may differ from iteration to iteration. Each iteration
    lowers q(x) = x^T A x / 2 - b^T x, the quadratic model whose minimum is the solution. The run
    ends at iteration i when q(x_i) < 0 and, with k = max(10, i / 10),

        (q(x_i) - q(x_{i-k})) / q(x_i) < k progress

    or when |r| <= tolerance |b|, or after `max_iterations`, or if p^T A p or r^T z is not positive:
    the solution is then the last x before.

    Cost: a product, an application of M and about 12 passes over vectors `[n]` per iteration;
    memory of about 5 + 8.8 ln(iterations / 2) + 2 `num_pairs` vectors.

    Args:
        product: v `[n]` -> A v `[n]`.
        b: Right side, `[n]`, float32 or float64.
        x0: The start, `[n]`. Default None: 0, which saves a product.
        preconditioner: r `[n]` -> M r `[n]`, M symmetric positive definite and near the inverse of
            A. Default None: M = I.
        max_iterations: At least 0. Default 250.
        tolerance: The limit of |r| relative to |b|. In float32 at least 1e-6 is used, because of
            rounding. Default 1e-6.
        progress: The limit of Martens' stop; 0 turns it off. Default 5e-4.
        num_pairs: The number of pairs to keep for an L-BFGS preconditioner. Default 0.

    Returns:
        x `[n]`, and `CGStatistics`.

    Raises:
        ValueError: An argument is out of range.

    References:
        Martens 2010, Deep learning via Hessian-free optimization, sections 4.4 and 4.7.
        Notay 2000, Flexible Conjugate Gradients.
        Sainath et al. 2013, section 3.1.2.
    """
    b = tf.convert_to_tensor(b)
    limit = integer_argument("max_iterations", max_iterations, at_least=0)
    tolerance = number_argument("tolerance", tolerance, at_least=0)
    progress = number_argument("progress", progress, at_least=0)
    num_pairs = integer_argument("num_pairs", num_pairs, at_least=0)
    pairs = CurvaturePairs(num_pairs) if num_pairs else None
    precondition = preconditioner or tf.identity
    target = max(tolerance, _SMALLEST_TOLERANCE[b.dtype]) * float(tf.norm(b))
    powers = math.ceil(math.log(max(limit, 1)) / math.log(_KEPT_AT))
    kept_at = {math.ceil(_KEPT_AT**j) for j in range(powers + 1)}

    x, r, products = (tf.zeros_like(b), b, 0) if x0 is None else (x0, b - product(x0), 1)
    z = precondition(r)
    p, rz = z, _dot(r, z)
    values, iterates, i = [_value(x, b, r)], [], 0
    reason = _hindrance(values, r, rz, target)
    while reason is None and i < limit:
        product_p, products = product(p), products + 1
        curvature = _dot(p, product_p)
        if not 0 < curvature < math.inf:
            reason = "curvature" if curvature <= 0 else "not finite"
            break
        i += 1
        alpha = tf.constant(rz / curvature, b.dtype)
        step, fall = alpha * p, alpha * product_p
        if pairs is not None and pairs.wants(i):
            pairs.add(i, step, fall)
        x += step
        r, before = r - fall, r
        z = precondition(r)
        beta = tf.constant(_dot(z, r - before) / rz, b.dtype)
        p, rz = z + beta * p, _dot(r, z)
        values.append(_value(x, b, r))
        if i in kept_at:
            iterates.append(Iterate(i, values[-1], x))
        reason = _hindrance(values, r, rz, target)
        if _has_slowed_down(values, progress):
            reason = "progress"
    if i and (not iterates or iterates[-1].iteration < i):
        iterates.append(Iterate(i, values[-1], x))
    norm = float(tf.norm(r))
    return x, CGStatistics(i, products, reason or "iterations", norm, values, iterates, pairs)


def _hindrance(values: list[float], r: tf.Tensor, rz: float, target: float) -> str | None:
    """Returns the reason to stop: r is small, or no iteration is possible; else None."""
    if not math.isfinite(rz) or not math.isfinite(values[-1]):
        return "not finite"
    if float(tf.norm(r)) <= target:
        return "tolerance"
    return "preconditioner" if rz <= 0 else None


def _has_slowed_down(values: list[float], progress: float) -> bool:
    """Martens' stop."""
    i, now = len(values) - 1, values[-1]
    back = max(10, i // 10)
    if progress == 0 or i < back or now >= 0:
        return False
    return (now - values[-1 - back]) / now < back * progress


def _value(x: tf.Tensor, b: tf.Tensor, r: tf.Tensor) -> float:
    return -0.5 * _dot(x, b + r)


def _dot(a: tf.Tensor, b: tf.Tensor) -> float:
    return float(tf.reduce_sum(a * b))
