# SPDX-License-Identifier: Apache-2.0
"""The factored update in TensorFlow's own ops alone."""

from __future__ import annotations

import tensorflow as tf

from tfx_largeout.ops.checks import check_finite
from tfx_largeout.ops.exact.class_shard import ClassShard
from tfx_largeout.ops.factored.factored_checks import (
    check_shape,
    input_checks,
    label_checks,
    rate_checks,
    require_rank,
)
from tfx_largeout.ops.factored.factored_coordinates_composed import catch_up, current_rows, reanchor
from tfx_largeout.ops.factored.factored_directions_composed import (
    SAFE_STEP,
    Step,
    bound_by_examples,
    bound_by_width,
    checked_directions,
    either,
    few_examples,
    solve_examples,
    solve_width,
)
from tfx_largeout.ops.factored.factored_state import FactoredState
from tfx_largeout.run_time_checks import after


def factored_statistics_composed(
    state: FactoredState, hidden: tf.Tensor, labels: tf.Tensor, update_rows: bool
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]:
    """Same results as the custom op of `factored_statistics`.

    Cost: O(B D^2 + B K D).

    Args:
        state: A state of TensorFlow's variables.
        hidden: H, `[B, D]`, of the state's dtype.
        labels: `[B, K]` int64, padded with -1.
        update_rows: Whether stale target rows are written back in the current coordinates.

    Returns:
        The five fields of `FactoredStatistics`, in order.
    """
    shard = ClassShard().tensors(state.num_classes)
    with after(input_checks(state, hidden, labels, shard)):
        hidden, labels = tf.identity(hidden), tf.identity(labels)
    ids = tf.maximum(labels, 0)
    if update_rows:
        catch_up(state, _different(labels))
    u_hidden = tf.matmul(hidden, state.u.read_value(), transpose_b=True)
    gram_hidden = tf.matmul(hidden, state.gram.read_value())
    targets = tf.einsum("bkd,bd->bk", _rows(state, ids), u_hidden)
    targets += tf.linalg.matvec(hidden, state.shift.read_value())[:, tf.newaxis]
    return (
        tf.where(labels >= 0, targets, 0),
        tf.reduce_sum(hidden * gram_hidden, axis=1),
        tf.linalg.matvec(hidden, state.row_sum.read_value()),
        gram_hidden,
        u_hidden,
    )


def factored_target_sums_composed(
    state: FactoredState, labels: tf.Tensor, g_target: tf.Tensor, shard: ClassShard
) -> tf.Tensor:
    """Same results as the custom op of `factored_target_sums`.

    Args:
        state: Of TensorFlow's variables.
        labels: `[B, K]` int64, padded with -1.
        g_target: g_a, `[B, K]`.
        shard: Which classes of the layer the rows of V are, in tensors.

    Returns:
        `[B, D]`.
    """
    require_rank("labels", labels, 2)
    checks = [
        *label_checks(state, labels, shard),
        check_shape("g_target", g_target, labels, "labels"),
        check_finite("g_target", g_target),
    ]
    with after(checks):
        labels = tf.identity(labels)
    rows = shard.row_of(labels, state.num_classes)
    g_target = tf.where(rows >= 0, g_target, 0)
    return tf.einsum("bk,bkd->bd", g_target, _rows(state, tf.maximum(rows, 0)))


def factored_update_composed(
    state: FactoredState,
    hidden: tf.Tensor,
    labels: tf.Tensor,
    gram_hidden: tf.Tensor,
    u_hidden: tf.Tensor,
    g_target: tf.Tensor,
    g_squares: tf.Tensor,
    g_sum: tf.Tensor,
    learning_rate: tf.Tensor,
    weight_decay: tf.Tensor,
    update: bool,
    max_condition: float | None,
    target_sums: tf.Tensor | None = None,
    shard: ClassShard | None = None,
) -> tf.Tensor:
    """Same results as the custom op of `factored_update`.

    With G = diag(g_q), E = dL/dH = 2 G H Q + Y, Y = Abar^T W, M = I - 2 eta H^T G H:

        U <- U M,  P <- P M^-1,  w <- M w - eta H^T g_s,  c <- M c - eta H^T (alpha + C g_s)
        V[y] <- V[y] - eta P x_y,  x_y = sum of g_a,ik h_i over the labels y_ik = y
        Q <- Q - eta (R H + H^T R^T),  R = E^T - eta/2 H^T T,
        T = 2 E H^T G + 2 G H Y^T + Abar^T Abar

    Where M may be close to singular, P is not needed: V is re-anchored through the step.

    Cost: O(B D^2 + B K D) and min(B, D)^3.

    Args:
        state: A state of TensorFlow's variables.
        hidden: H, `[B, D]`.
        labels: `[B, K]` int64, padded with -1.
        gram_hidden: H Q of the present state.
        u_hidden: H U^T of the present state.
        g_target: g_a, `[B, K]`.
        g_squares: g_q, `[B]`.
        g_sum: g_s, `[B]`.
        learning_rate: Scalar, eta.
        weight_decay: Scalar, lambda.
        update: Whether to change the state.
        max_condition: V is re-anchored when |U| |P| / D is larger; None: never.
        target_sums: As `factored_target_sums_composed` gave it, summed over shards; None: it is
            found here.
        shard: Which classes of the layer the rows of V are; None: all.

    Returns:
        dL/dH, `[B, D]`.
    """
    shard = (shard or ClassShard()).tensors(state.num_classes)
    checks = input_checks(state, hidden, labels, shard)
    by_example = tf.zeros(tf.shape(hidden)[:1])
    checks += [
        check_shape("gram_hidden", gram_hidden, hidden, "hidden"),
        check_shape("u_hidden", u_hidden, hidden, "hidden"),
        check_shape("g_target", g_target, labels, "labels"),
        check_shape("g_squares", g_squares, by_example, "hidden[:, 0]"),
        check_shape("g_sum", g_sum, by_example, "hidden[:, 0]"),
    ]
    checks += rate_checks(learning_rate, weight_decay)
    finite = {
        "gram_hidden": gram_hidden,
        "u_hidden": u_hidden,
        "g_target": g_target,
        "g_squares": g_squares,
        "g_sum": g_sum,
    }
    checks += [check_finite(name, values) for name, values in finite.items()]
    if target_sums is not None:
        checks += [
            check_shape("target_sums", target_sums, hidden, "hidden"),
            check_finite("target_sums", target_sums),
        ]
    with after(checks):
        hidden, labels = tf.identity(hidden), tf.identity(labels)
    if target_sums is None:
        target_sums = factored_target_sums_composed(state, labels, g_target, shard)
    step = Step(
        hidden,
        labels,
        gram_hidden,
        u_hidden,
        tf.where(labels >= 0, g_target, 0),
        g_squares,
        g_sum,
        learning_rate,
        learning_rate * weight_decay,
        shard,
    )
    y = _target_gradient(state, step, target_sums)
    error = 2 * g_squares[:, tf.newaxis] * gram_hidden + y
    if update:
        # The gradient is taken before the state changes.
        with tf.control_dependencies([error]):
            checked = _update(state, step, y, error, max_condition)
        with tf.control_dependencies([checked]):
            error = tf.identity(error)
    return error


def _target_gradient(state: FactoredState, step: Step, target_sums: tf.Tensor) -> tf.Tensor:
    """Returns Y = Abar^T W, `[B, D]`."""
    y = tf.matmul(target_sums, state.u.read_value())
    y += step.alpha[:, tf.newaxis] * state.shift.read_value()
    return y + step.g_sum[:, tf.newaxis] * state.row_sum.read_value()


def _update(
    state: FactoredState, step: Step, y: tf.Tensor, error: tf.Tensor, max_condition: float | None
) -> tf.Tensor:
    """Changes the state; returns a tensor that is there once the last check has passed."""
    eta, decay, hidden = step.eta, step.decay, step.hidden
    ids, places = tf.unique(tf.reshape(tf.maximum(step.labels, 0), [-1]))
    few = few_examples(state, hidden)
    bound = either(few, lambda: bound_by_examples(step), lambda: bound_by_width(step))
    is_safe = bound < SAFE_STEP
    p, row_directions = tf.cond(
        is_safe,
        lambda: either(few, lambda: solve_examples(state, step), lambda: solve_width(state, step)),
        lambda: checked_directions(state, step),
    )
    # Nothing is written before the last check, which `row_directions` waits for.
    with tf.control_dependencies([row_directions]):
        u = state.u.read_value()
        u -= 2 * eta * tf.matmul(step.u_hidden, step.weighted_hidden, transpose_a=True)
        t_hidden = either(
            few,
            lambda: _t_hidden_by_examples(step, y, error),
            lambda: _t_hidden_by_width(step, y, error),
        ) + _a_bar_hidden(state, step, ids, places)
        half = tf.matmul(error - eta / 2 * t_hidden, hidden, transpose_a=True)
        gram = state.gram.read_value() - eta * (half + tf.transpose(half))
        shift, row_sum = _vectors(state, step)
    assign_decayed(state, decay, is_safe, (u, p), (gram, shift, row_sum))
    rows = step.shard.row_of(ids, state.num_classes)
    is_here = rows >= 0
    catch_up(state, _different(step.shard.row_of(step.labels, state.num_classes)))
    updates = eta * _sum_by_label(step, row_directions, ids, places)
    tf.raw_ops.ResourceScatterSub(
        resource=state.v.handle,
        indices=tf.boolean_mask(rows, is_here),
        updates=tf.boolean_mask(updates, is_here),
    )
    reanchor_above(state, max_condition)
    return row_directions


def assign_decayed(
    state: FactoredState,
    decay: tf.Tensor,
    is_safe: tf.Tensor,
    factors: tuple[tf.Tensor, tf.Tensor],
    moments: tuple[tf.Tensor, tf.Tensor, tf.Tensor],
) -> None:
    """Assigns all of a step but rows of V, with the decay of W; V takes U in if it is not safe.

    Args:
        state: A state of TensorFlow's variables, changed in place.
        decay: eta lambda.
        is_safe: Whether U' is far from singular.
        factors: U' and P', before the decay.
        moments: Q', w' and c', before the decay.
    """
    (u, p), (gram, shift, row_sum) = factors, moments
    # Not times 1 - decay, which has an error of up to 3e-8 in float32, the same in every step.
    u -= decay * u
    state.gram.assign(gram - decay * (2 - decay) * gram)
    state.shift.assign(shift - decay * shift)
    state.row_sum.assign(row_sum - decay * row_sum)
    tf.cond(
        is_safe,
        lambda: _assign_factors(state, u, p + decay / (1 - decay) * p),
        lambda: _reanchor(state, u),
    )


def reanchor_above(state: FactoredState, max_condition: float | None) -> None:
    """Has V take U in where the bound of U's condition number is above one; None: nowhere."""
    if max_condition is not None:
        tf.cond(
            _condition_bound(state) > max_condition,
            lambda: _reanchor(state, state.u.read_value()),
            lambda: tf.constant(0),
        )


def _condition_bound(state: FactoredState) -> tf.Tensor:
    """Returns |U|_F |P|_F / D: 1 for U = I, and at most the condition number of U."""
    norms = tf.norm(state.u.read_value()) * tf.norm(state.u_inverse_transpose.read_value())
    return norms / state.width


# H^T T: that of 2 E H^T G + 2 G H Y^T, and that of Abar^T Abar.


def _t_hidden_by_examples(step: Step, y: tf.Tensor, error: tf.Tensor) -> tf.Tensor:
    weighted = step.weighted_hidden
    t = tf.matmul(error, weighted, transpose_b=True) + tf.matmul(weighted, y, transpose_b=True)
    return 2 * tf.matmul(t, step.hidden)


def _t_hidden_by_width(step: Step, y: tf.Tensor, error: tf.Tensor) -> tf.Tensor:
    weighted, hidden = step.weighted_hidden, step.hidden
    left = tf.matmul(error, tf.matmul(weighted, hidden, transpose_a=True))
    return 2 * (left + tf.matmul(weighted, tf.matmul(y, hidden, transpose_a=True)))


def _a_bar_hidden(state: FactoredState, step: Step, ids: tf.Tensor, places: tf.Tensor) -> tf.Tensor:
    """Returns Abar^T Abar H: A^T A H through the sums over equal labels, and the rank-2 rest."""
    sums = _sum_by_label(step, step.hidden, ids, places)
    sums = tf.gather(sums, tf.reshape(places, tf.shape(step.labels)))
    product = tf.einsum("bk,bkd->bd", step.g_target, sums)
    product += step.alpha[:, tf.newaxis] * _times(step.g_sum, step.hidden)
    weights = step.alpha + tf.cast(step.shard.num_classes, step.alpha.dtype) * step.g_sum
    return product + step.g_sum[:, tf.newaxis] * _times(weights, step.hidden)


def _sum_by_label(step: Step, rows: tf.Tensor, ids: tf.Tensor, places: tf.Tensor) -> tf.Tensor:
    """Returns the sum over (i, k) with y_ik = id of g_a,ik rows_i, `[ids, D]`."""
    terms = step.g_target[:, :, tf.newaxis] * rows[:, tf.newaxis, :]
    terms = tf.reshape(terms, [-1, rows.shape[-1]])
    return tf.math.unsorted_segment_sum(terms, places, tf.size(ids))


def _vectors(state: FactoredState, step: Step) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns w' and c', before the decay."""
    eta, hidden, g_sum = step.eta, step.hidden, step.g_sum
    w, c = state.shift.read_value(), state.row_sum.read_value()

    def moved(x: tf.Tensor, added: tf.Tensor) -> tf.Tensor:
        images = tf.linalg.matvec(hidden, x)
        return x - eta * _times(2 * step.g_squares * images + added, hidden)

    num_classes = tf.cast(step.shard.num_classes, g_sum.dtype)
    return moved(w, g_sum), moved(c, step.alpha + num_classes * g_sum)


def _times(weights: tf.Tensor, hidden: tf.Tensor) -> tf.Tensor:
    """Returns H^T weights, `[D]`."""
    return tf.linalg.matvec(hidden, weights, transpose_a=True)


def _assign_factors(state: FactoredState, u: tf.Tensor, p: tf.Tensor) -> tf.Tensor:
    """Assigns U and P; for a branch of `tf.cond`."""
    state.u.assign(u)
    state.u_inverse_transpose.assign(p)
    return tf.constant(0)


def _reanchor(state: FactoredState, u: tf.Tensor) -> tf.Tensor:
    """As `reanchor`; for a branch of `tf.cond`."""
    reanchor(state, u)
    return tf.constant(0)


def _rows(state: FactoredState, ids: tf.Tensor) -> tf.Tensor:
    """Returns the current rows of `[B, K]` ids, `[B, K, D]`."""
    rows = current_rows(state, tf.reshape(ids, [-1]))
    shape = tf.concat([tf.shape(ids), [state.width]], axis=0)
    return tf.ensure_shape(tf.reshape(rows, shape), ids.shape.concatenate(state.width))


def _different(labels: tf.Tensor) -> tf.Tensor:
    """Returns the classes among labels, each once."""
    return tf.unique(tf.boolean_mask(labels, labels >= 0)).y
