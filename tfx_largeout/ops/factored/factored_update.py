# SPDX-License-Identifier: Apache-2.0
"""Statistics of the logits of W = V U + 1 w^T, and its exact SGD step, in O(D^2) per example."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import tensorflow as tf

from tfx_largeout.ops.factored.factored_checks import check_all_rows
from tfx_largeout.ops.factored.factored_coordinates_composed import settle
from tfx_largeout.ops.factored.factored_state import FactoredState
from tfx_largeout.ops.factored.factored_update_composed import (
    factored_statistics_composed,
    factored_update_composed,
)
from tfx_largeout.ops.implementation import op_module
from tfx_largeout.run_time_checks import after

MAX_CONDITION = 4.0
"""V is re-anchored when |U|_F |P|_F / D is larger."""

_DTYPES = (tf.float32, tf.float64)


class FactoredStatistics(NamedTuple):
    """The result of `factored_statistics`, in the state's dtype."""

    target_logits: tf.Tensor
    """a, `[B, K]`; 0 where the label is -1."""
    sum_of_squares: tf.Tensor
    """q, `[B]`: sum_c o_c^2."""
    sum_of_logits: tf.Tensor
    """s, `[B]`: sum_c o_c."""
    gram_hidden: tf.Tensor
    """H Q, `[B, D]`, for the update."""
    u_hidden: tf.Tensor
    """H U^T, `[B, D]`, for the update."""


def factored_statistics(
    state: FactoredState,
    hidden: tf.Tensor,
    labels: tf.Tensor,
    *,
    update_rows: bool = True,
    implementation: str = "auto",
) -> FactoredStatistics:
    """Target logits, sum of squares and sum of all logits o = W h.

    a_ik = V[y_ik] . (U h_i) + w . h_i,  q_i = h_i^T Q h_i,  s_i = c . h_i

    Cost: O(B D^2 + B K D), independent of C.

    Args:
        state: The state.
        hidden: H, `[B, D]`, of the state's dtype, finite.
        labels: `[B, K]` int64, padded with -1.
        update_rows: Whether stale target rows are written back in the current coordinates, as in a
            training step; W does not change. False: nothing is written.
        implementation: See `ops`, which has the errors, too; also for an invalid slot of a label's
            row. The GPU kernel, which does not let the host wait, returns NaN instead of an error
            for wrong values; `factored_update` then raises.
    """
    state = state.variables
    state.check()
    _check_dtypes(state, hidden=hidden)
    module = op_module(implementation, "tfx_factored_update", "v", state.v, _DTYPES, _DTYPES)
    if module is None:
        outputs = factored_statistics_composed(state, hidden, labels, update_rows)
    else:
        outputs = module.tfx_factored_statistics(
            *state.handles, hidden, labels, update_rows=update_rows
        )
    return FactoredStatistics(*outputs)


def factored_update(
    state: FactoredState,
    hidden: tf.Tensor,
    labels: tf.Tensor,
    gram_hidden: tf.Tensor,
    u_hidden: tf.Tensor,
    gradients: tuple[tf.Tensor, tf.Tensor, tf.Tensor],
    learning_rate: tf.Tensor,
    weight_decay: tf.Tensor,
    *,
    update: bool = True,
    max_condition: float | None = MAX_CONDITION,
    implementation: str = "auto",
) -> tf.Tensor:
    """Takes the SGD step of the naive layer, and returns dL/dH.

    W <- (1 - eta lambda) W - eta (2 W H^T G H + Abar H), with G = diag(g_q) and
    Abar = A + 1 g_s^T, A[y_ik, i] += g_a,ik. docs/papers/exact_gradient.md derives it.

    Cost: O(B D^2 + B K D) and at most O(min(B, D)^3), or O(D^3) in TensorFlow's ops, independent of
    C.

    Args:
        state: The state, changed in place.
        hidden: H, `[B, D]`, finite.
        labels: `[B, K]` int64, padded with -1.
        gram_hidden: H Q, from `factored_statistics` for this state.
        u_hidden: H U^T, likewise.
        gradients: g_a `[B, K]`, g_q `[B]` and g_s `[B]`: the gradients with respect to a, q and s.
        learning_rate: eta, a scalar of at least 0.
        weight_decay: lambda, a scalar of at least 0: W is multiplied by 1 - eta lambda.
        update: Whether to take the step; False: only the gradient.
        max_condition: V is re-anchored when |U|_F |P|_F / D is above it. None: only if the step
            needs it.
        implementation: See `ops`.

    Returns:
        dL/dH = 2 G H Q + Abar^T W, `[B, D]`, at the W before the step.

    Raises:
        tf.errors.InvalidArgumentError: As in `ops`; or the slot of a label's row is invalid, or the
            step would also diverge in the naive layer, because 2 eta times the largest eigenvalue
            of H^T G H is above 2. The state is unchanged.
    """
    state = state.variables
    state.check()
    if max_condition is not None and math.isnan(max_condition):
        raise ValueError(f"max_condition must be a number or None; got {max_condition}")
    learning_rate = tf.convert_to_tensor(learning_rate, state.dtype)
    weight_decay = tf.convert_to_tensor(weight_decay, state.dtype)
    g_target, g_squares, g_sum = gradients
    _check_dtypes(
        state,
        hidden=hidden,
        gram_hidden=gram_hidden,
        u_hidden=u_hidden,
        g_target=g_target,
        g_squares=g_squares,
        g_sum=g_sum,
    )
    tensors = (hidden, labels, gram_hidden, u_hidden, *gradients, learning_rate, weight_decay)
    module = op_module(implementation, "tfx_factored_update", "v", state.v, _DTYPES, _DTYPES)
    if module is None:
        return factored_update_composed(state, *tensors, update, max_condition)
    return module.tfx_factored_update(
        *state.handles,
        *tensors,
        update=update,
        max_condition=float("inf") if max_condition is None else max_condition,
    )


def factored_settle(state: FactoredState, *, implementation: str = "auto") -> None:
    """Converts every row of V to the current coordinates, so that W = V U + 1 w^T.

    Cost: O(C) to read the slots of all rows, and O(D^2) per stale row; no temporary of V's size.

    Args:
        state: The state, changed in place. W doesn't change.
        implementation: See `ops`, which has the errors, too; also for an invalid slot of a row, and
            for wrong counts in `slot_rows`.
    """
    state = state.variables
    state.check()
    module = op_module(implementation, "tfx_factored_update", "v", state.v, _DTYPES)
    if module is None:
        with after(check_all_rows(state)):
            settle(state, state.num_classes)
    else:
        module.tfx_factored_settle(*state.handles, dtype=state.dtype)


def _check_dtypes(state: FactoredState, **tensors: Any) -> None:
    for name, tensor in tensors.items():
        if tensor.dtype != state.dtype:
            raise TypeError(
                f"{name} must have the dtype of the state, {state.dtype.name}; "
                f"got {tensor.dtype.name}"
            )
