# SPDX-License-Identifier: Apache-2.0
"""What a factored step solves for: P M^-1 and H P'^T, through examples or through the width."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfx_largeout.ops.exact.class_shard import ClassShard
from tfx_largeout.ops.factored.factored_state import FactoredState
from tfx_largeout.run_time_checks import Check, after

# Up to this bound of 2 eta lambda_max, M = I - 2 eta H^T G H is positive definite by a margin.
SAFE_STEP = 0.95
_POWER_ITERATIONS = 100


class Step(NamedTuple):
    """A batch, the gradients of its statistics, and the rates.

    Attributes:
        hidden: H, `[B, D]`.
        labels: `[B, K]`.
        gram_hidden: H Q, `[B, D]`.
        u_hidden: H U^T, `[B, D]`.
        g_target: g_a, `[B, K]`; 0 at padding.
        g_squares: g_q, `[B]`.
        g_sum: g_s, `[B]`.
        learning_rate: Scalar.
        decay: learning_rate weight_decay, a scalar: the share of W that goes.
        shard: Which classes of the layer the rows of V are, in tensors.
    """

    hidden: tf.Tensor
    labels: tf.Tensor
    gram_hidden: tf.Tensor
    u_hidden: tf.Tensor
    g_target: tf.Tensor
    g_squares: tf.Tensor
    g_sum: tf.Tensor
    learning_rate: tf.Tensor
    decay: tf.Tensor
    shard: ClassShard

    @property
    def eta(self) -> tf.Tensor:
        """The learning rate of the step before W decays."""
        return self.learning_rate / (1 - self.decay)

    @property
    def alpha(self) -> tf.Tensor:
        """`[B]`: the sum of g_a over the labels of an example."""
        return tf.reduce_sum(self.g_target, axis=1)

    @property
    def weighted_hidden(self) -> tf.Tensor:
        """G H, `[B, D]`."""
        return self.g_squares[:, tf.newaxis] * self.hidden


def few_examples(state: FactoredState, hidden: tf.Tensor) -> tf.Tensor | bool:
    """Says whether there are no more examples than the width, while tracing if that is known."""
    if hidden.shape[0] is not None:
        return bool(hidden.shape[0] <= state.width)
    return tf.shape(hidden)[0] <= state.width


def either(condition: tf.Tensor | bool, if_true: Any, if_false: Any) -> Any:
    """Returns what one of two functions returns; no `tf.cond` where the condition is known."""
    if isinstance(condition, bool):
        return if_true() if condition else if_false()
    return tf.cond(condition, if_true, if_false)


# A bound of 2 eta lambda_max of H^T G H: the Frobenius norm of H^T max(G, 0) H, which is above it.
# Infinity where H^T G H is beyond the dtype, for negative G, too.


def bound_by_examples(step: Step) -> tf.Tensor:
    """Returns a bound of 2 eta lambda_max, through H H^T."""
    root = tf.sqrt(tf.maximum(step.g_squares, 0))[:, tf.newaxis] * step.hidden
    return _if_finite(step, 2 * step.eta * tf.norm(tf.matmul(root, root, transpose_b=True)))


def bound_by_width(step: Step) -> tf.Tensor:
    """Returns a bound of 2 eta lambda_max, through H^T G H."""
    positive = tf.maximum(step.g_squares, 0)[:, tf.newaxis] * step.hidden
    return _if_finite(
        step, 2 * step.eta * tf.norm(tf.matmul(positive, step.hidden, transpose_a=True))
    )


def _if_finite(step: Step, bound: tf.Tensor) -> tf.Tensor:
    terms = step.weighted_hidden * step.hidden
    is_finite = tf.math.is_finite(tf.reduce_sum(tf.abs(2 * step.eta * terms)))
    return tf.where(is_finite, bound, tf.constant(np.inf, bound.dtype))


# P' = P M^-1 and, for the rows of V, H P'^T.


def solve_examples(state: FactoredState, step: Step) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns P' and H P'^T.

    H M^-1 = (I - 2 eta H H^T G)^-1 H, and P' = P + 2 eta P' H^T G H.
    """
    p, hidden = state.u_inverse_transpose.read_value(), step.hidden
    kernel = tf.matmul(hidden, step.weighted_hidden, transpose_b=True)
    small = tf.eye(tf.shape(hidden)[0], dtype=hidden.dtype) - 2 * step.eta * kernel
    directions = tf.linalg.solve(small, tf.matmul(hidden, p, transpose_b=True))
    change = tf.matmul(directions, step.weighted_hidden, transpose_a=True)
    return p + 2 * step.eta * change, directions


def solve_width(state: FactoredState, step: Step) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns P' and H P'^T, by M = I - K itself, a symmetric matrix: M^-1 = I + M^-1 K.

    P M^-1 at once would have errors of the size of P, not of the step.
    """
    p, hidden = state.u_inverse_transpose.read_value(), step.hidden
    k = 2 * step.eta * tf.matmul(hidden, step.weighted_hidden, transpose_a=True)
    m = tf.eye(state.width, dtype=hidden.dtype) - k
    p += tf.transpose(tf.linalg.solve(m, tf.matmul(k, p, transpose_b=True)))
    return p, tf.matmul(hidden, p, transpose_b=True)


def checked_directions(state: FactoredState, step: Step) -> tuple[tf.Tensor, tf.Tensor]:
    """Refuses a step that diverges. Otherwise U' is multiplied into V, and P' is I."""
    check = divergence_check(_lambda_max(step), step.learning_rate, step.decay)
    with after([check]):
        return tf.identity(state.u_inverse_transpose.read_value()), (1 - step.decay) * step.hidden


def divergence_check(largest: tf.Tensor, learning_rate: tf.Tensor, decay: tf.Tensor) -> Check:
    """Returns a check that a step does not diverge.

    Args:
        largest: The largest eigenvalue of H^T G H.
        learning_rate: Scalar, eta.
        decay: Scalar, the share of W that goes.
    """
    product = 2 * learning_rate * largest
    return Check(
        tf.math.is_finite(product) & (product <= 2 - decay),
        lambda: [
            "learning_rate eta must be such that 2 eta lambda_max is at most 2 - eta decay, or the "
            "step diverges, in a naive layer as well; got eta",
            learning_rate,
            "eta decay",
            decay,
            "and lambda_max",
            largest,
            "of H^T diag(dL/dq) H: lower the learning rate",
        ],
    )


def _lambda_max(step: Step) -> tf.Tensor:
    """Returns the largest eigenvalue of H^T G H, by power iteration."""
    hidden, weights = step.hidden, step.g_squares
    negative = tf.minimum(weights, 0)
    shift = -tf.reduce_sum(negative * tf.reduce_sum(hidden**2, axis=1))  # at least -lambda_min

    def product(x: tf.Tensor) -> tf.Tensor:
        return tf.linalg.matvec(hidden, weights * tf.linalg.matvec(hidden, x), transpose_a=True)

    def body(_: tf.Tensor, x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        x /= tf.norm(x)
        image = product(x)
        return tf.reduce_sum(x * image), image + shift * x

    # The largest of the positive terms is a start that is not orthogonal to the answer.
    norms = weights * tf.reduce_sum(hidden**2, axis=1)
    start = (tf.zeros([], hidden.dtype), hidden[tf.argmax(norms)])
    value, _ = tf.while_loop(
        lambda *_: True,
        body,
        start,
        maximum_iterations=_POWER_ITERATIONS,
        parallel_iterations=1,
    )
    return value
