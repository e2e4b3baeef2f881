# SPDX-License-Identifier: Apache-2.0
"""The paper's stabilization of U: singular values outside of a safe range become 1."""

from __future__ import annotations

import tensorflow as tf

from tfx_largeout.ops.factored.factored_coordinates_composed import (
    for_each_block,
    run_if,
    settle,
)
from tfx_largeout.ops.factored.factored_state import FactoredState
from tfx_largeout.ops.rows.variable_rows import gather, scatter_update

METHODS = ("svd", "power_iteration")
LOWEST, HIGHEST = 0.001, 100.0
_POWER_ITERATIONS = 100


def stabilize(state: FactoredState, method: str, num_classes: int) -> None:
    """Moves the singular values of U that are below 0.001 or above 100 into V; W doesn't change.

    For a singular value sigma with left vector u, and alpha = 1/sigma - 1, beta = sigma - 1:

        U <- U + alpha u (U^T u)^T,  V <- V + beta (V u) u^T,  P <- P + beta u (P^T u)^T

    P is first recomputed from U, as the paper advises.

    Cost: O(D^3); O(C D) per moved singular value.

    Args:
        state: The state, changed in place.
        method: `"svd"`: all singular values at once. `"power_iteration"`: the largest and the
            smallest, one after the other, by 100 steps of power iteration each, until both are in
            range.
        num_classes: C: the number of rows of all workers. Each changes U and P like the others, and
            its rows of V.

    References:
        Vincent, de Brébisson, Bouthillier 2015, Algorithm 3.
    """
    state = state.variables
    settle(state, num_classes)
    state.u_inverse_transpose.assign(tf.transpose(tf.linalg.inv(state.u.read_value())))
    if method == "svd":
        _fix_by_svd(state)
    else:
        _fix_by_power_iteration(state, largest=True)
        _fix_by_power_iteration(state, largest=False)


def _fix_by_svd(state: FactoredState) -> None:
    values, vectors, _ = tf.linalg.svd(state.u.read_value())
    wrong = (values < LOWEST) | (values > HIGHEST)
    run_if(
        tf.reduce_any(wrong),
        lambda: _fix(
            state, tf.boolean_mask(values, wrong), tf.boolean_mask(vectors, wrong, axis=1)
        ),
    )


def _fix_by_power_iteration(state: FactoredState, largest: bool) -> None:
    def extreme() -> tuple[tf.Tensor, tf.Tensor]:
        if largest:
            return _largest_singular(state.u.read_value())
        # The smallest singular value of U: P = U^-T has the same left vectors, and 1 / sigma.
        value, vector = _largest_singular(state.u_inverse_transpose.read_value())
        return 1 / value, vector

    def body(turn: tf.Tensor, value: tf.Tensor, vector: tf.Tensor):  # type: ignore[no-untyped-def]
        _fix(state, value[tf.newaxis], vector[:, tf.newaxis])
        return turn + 1, *extreme()

    tf.while_loop(
        lambda turn, value, _: (value > HIGHEST) if largest else (value < LOWEST),
        body,
        (tf.constant(0), *extreme()),
        maximum_iterations=state.width,
        parallel_iterations=1,
    )


def _largest_singular(matrix: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the largest singular value and its left vector."""
    size = tf.shape(matrix)[0]
    start = tf.ones([size], matrix.dtype) / tf.sqrt(tf.cast(size, matrix.dtype))

    def body(vector: tf.Tensor) -> tuple[tf.Tensor]:
        image = tf.linalg.matvec(matrix, tf.linalg.matvec(matrix, vector, transpose_a=True))
        return (image / tf.norm(image),)

    (vector,) = tf.while_loop(
        lambda _: True,
        body,
        (start,),
        maximum_iterations=_POWER_ITERATIONS,
        parallel_iterations=1,
    )
    return tf.norm(tf.linalg.matvec(matrix, vector, transpose_a=True)), vector


def _fix(state: FactoredState, values: tf.Tensor, vectors: tf.Tensor) -> None:
    """Makes these singular values 1. `values` `[n]`, `vectors` `[D, n]`: left, orthonormal."""
    to_u = (1 / values - 1) * vectors
    to_v = (values - 1) * vectors
    u, p = state.u.read_value(), state.u_inverse_transpose.read_value()
    state.u.assign(u + tf.matmul(to_u, tf.matmul(vectors, u, transpose_a=True)))
    state.u_inverse_transpose.assign(p + tf.matmul(to_v, tf.matmul(vectors, p, transpose_a=True)))

    def move(ids: tf.Tensor) -> None:
        rows = gather(state.v, ids)
        rows += tf.matmul(tf.matmul(rows, vectors), to_v, transpose_b=True)
        scatter_update(state.v, ids, rows)

    for_each_block(state, move)
