# SPDX-License-Identifier: Apache-2.0
"""The factored step in TensorFlow's ops: from sums over the batch, each D x D.

With several workers, each has some rows of V, and the whole rest of the state, bit for bit the
same, since only sums over all workers change it. `slot_rows` counts the rows of all workers. A
layer on one worker computes the sums itself.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tfx_largeout.ops.checks import check_equal_shape, check_finite
from tfx_largeout.ops.factored.factored_checks import (
    divergence_check,
    input_checks,
    rate_checks,
)
from tfx_largeout.ops.factored.factored_coordinates_composed import (
    catch_up,
    current_rows,
    reanchor,
    rows_by_slot,
    run_if,
)
from tfx_largeout.ops.factored.factored_state import NUM_SLOTS, FactoredState
from tfx_largeout.run_time_checks import after

_SAFE_STEP = 0.95
"""Up to this bound of 2 eta lambda_max, M = I - 2 eta H^T G H is positive definite by a margin."""


def factored_statistics_composed(
    state: FactoredState, hidden: tf.Tensor, labels: tf.Tensor, update_rows: bool
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]:
    """Same results as the custom op of `factored_statistics`."""
    with after(input_checks(state, hidden, labels)):
        hidden, labels = tf.identity(hidden), tf.identity(labels)
    ids, places = _different(labels)
    if update_rows:
        catch_up(state, ids)
    return statistics_of_examples(state, hidden, _label_rows(state, ids), places)


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
) -> tf.Tensor:
    """Same results as the custom op of `factored_update`: see `take_step`. Cost: also O(D^3)."""
    by_example = tf.zeros(tf.shape(hidden)[:1])
    tensors = {
        "gram_hidden": (gram_hidden, "hidden", hidden),
        "u_hidden": (u_hidden, "hidden", hidden),
        "g_target": (g_target, "labels", labels),
        "g_squares": (g_squares, "hidden[:, 0]", by_example),
        "g_sum": (g_sum, "hidden[:, 0]", by_example),
    }
    shapes = [
        check_equal_shape(f"{name} must have the shape of {of}:", values, tf.shape(like))
        for name, (values, of, like) in tensors.items()
    ]
    checks = [
        *input_checks(state, hidden, labels),
        *shapes,
        *rate_checks(learning_rate, weight_decay),
        *(check_finite(name, values) for name, (values, *_) in tensors.items()),
    ]
    with after(checks):
        hidden, labels = tf.identity(hidden), tf.identity(labels)
    ids, places = _different(labels)
    g_target = tf.where(labels >= 0, g_target, 0)
    examples = Examples(
        hidden, gram_hidden, _label_rows(state, ids), places, g_target, g_squares, g_sum
    )
    gradient = hidden_gradient(state, examples)
    if update:
        # The gradient is computed before the state changes.
        with tf.control_dependencies([gradient]):
            row_sums = examples.label_sums[:-1]
            sums = sums_of(state, examples, ids, row_sums)
        rates = learning_rate, weight_decay, max_condition
        taken = take_step(state, sums, ids, row_sums, state.num_classes, *rates)
        with tf.control_dependencies([taken]):
            gradient = tf.identity(gradient)
    return gradient


@dataclasses.dataclass(frozen=True)
class Examples:
    """Some of the examples of a batch: H, the rows of their labels, and the loss's gradients.

    Attributes:
        hidden: H, `[n, D]`.
        gram_hidden: H Q, `[n, D]`.
        label_rows: `[m + 1, D]`: distinct rows of V, in the current coordinates; the last one 0.
        places: `[n, K]` int64: the row of each label; m at padding.
        g_target: g_a, `[n, K]`; 0 at padding.
        g_squares: g_q, `[n]`.
        g_sum: g_s, `[n]`.
    """

    hidden: tf.Tensor
    gram_hidden: tf.Tensor
    label_rows: tf.Tensor
    places: tf.Tensor
    g_target: tf.Tensor
    g_squares: tf.Tensor
    g_sum: tf.Tensor

    @property
    def alpha(self) -> tf.Tensor:
        """`[n]`: the sum of g_a over the labels of an example."""
        return tf.reduce_sum(self.g_target, axis=1)

    @functools.cached_property  # both the gradient and the step need it
    def target_sums(self) -> tf.Tensor:
        """S, `[n, D]`: sum_k g_a,ik V[y_ik]."""
        rows = tf.gather(self.label_rows, self.places)
        return tf.einsum("nk,nkd->nd", self.g_target, rows)

    @property
    def label_sums(self) -> tf.Tensor:
        """x_y, `[m + 1, D]`: the sum over y_ik = y of g_a,ik h_i."""
        terms = self.g_target[:, :, tf.newaxis] * self.hidden[:, tf.newaxis, :]
        terms = tf.reshape(terms, [-1, self.hidden.shape[1]])
        places = tf.reshape(self.places, [-1])
        return tf.math.unsorted_segment_sum(terms, places, tf.shape(self.label_rows)[0])


class Sums(NamedTuple):
    """The sums over all examples, or labels, of a batch that a step needs.

    Attributes:
        gram: N = H^T G H, `[D, D]`.
        targets: H^T S, `[D, D]`, with S from `Examples.target_sums`.
        labels: X^T X, `[D, D]`: the sum of x_y x_y^T over distinct labels.
        alpha: H^T alpha, `[D]`.
        g_sum: H^T g_s, `[D]`.
        slots: `[8]`: the number of label rows in each slot. Exact below 2^24.
    """

    gram: tf.Tensor
    targets: tf.Tensor
    labels: tf.Tensor
    alpha: tf.Tensor
    g_sum: tf.Tensor
    slots: tf.Tensor

    @property
    def flat(self) -> tf.Tensor:
        """All in one vector, `[3 D^2 + 2 D + 8]`."""
        return tf.concat([tf.reshape(part, [-1]) for part in self], axis=0)

    @staticmethod
    def of_flat(flat: tf.Tensor, width: int) -> Sums:
        """Undoes `flat`."""
        shapes = [[width, width]] * 3 + [[width]] * 2 + [[NUM_SLOTS]]
        parts = tf.split(flat, [int(np.prod(shape)) for shape in shapes])
        return Sums(*map(tf.reshape, parts, shapes))


def statistics_of_examples(
    state: FactoredState, hidden: tf.Tensor, label_rows: tf.Tensor, places: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]:
    """Returns a `[n, K]` (0 at padding), q `[n]`, s `[n]`, H Q and H U^T `[n, D]`.

    Cost: O(n D^2 + n K D). Arguments: as in `Examples`.
    """
    u_hidden = tf.matmul(hidden, state.u.read_value(), transpose_b=True)
    gram_hidden = tf.matmul(hidden, state.gram.read_value())
    targets = tf.einsum("nkd,nd->nk", tf.gather(label_rows, places), u_hidden)
    targets += tf.linalg.matvec(hidden, state.shift.read_value())[:, tf.newaxis]
    is_label = places < tf.shape(label_rows, tf.int64)[0] - 1
    return (
        tf.where(is_label, targets, 0),
        tf.reduce_sum(hidden * gram_hidden, axis=1),
        tf.linalg.matvec(hidden, state.row_sum.read_value()),
        gram_hidden,
        u_hidden,
    )


def hidden_gradient(state: FactoredState, examples: Examples) -> tf.Tensor:
    """Returns dL/dH = 2 G H Q + S U + alpha w^T + g_s c^T, `[n, D]`. Cost: O(n D^2 + n K D)."""
    gradient = tf.matmul(examples.target_sums, state.u.read_value())
    gradient += examples.alpha[:, tf.newaxis] * state.shift.read_value()
    gradient += examples.g_sum[:, tf.newaxis] * state.row_sum.read_value()
    return gradient + 2 * examples.g_squares[:, tf.newaxis] * examples.gram_hidden


def sums_of(state: FactoredState, examples: Examples, rows: tf.Tensor, row_sums: tf.Tensor) -> Sums:
    """Returns the sums over this worker's examples, and over labels with rows on this worker.

    Cost: O((n + r) D^2). `rows` and `row_sums` as in `take_step`.
    """
    hidden = examples.hidden
    return Sums(
        tf.matmul(hidden, examples.g_squares[:, tf.newaxis] * hidden, transpose_a=True),
        tf.matmul(hidden, examples.target_sums, transpose_a=True),
        tf.matmul(row_sums, row_sums, transpose_a=True),
        tf.linalg.matvec(hidden, examples.alpha, transpose_a=True),
        tf.linalg.matvec(hidden, examples.g_sum, transpose_a=True),
        tf.cast(rows_by_slot(state, rows), state.dtype),
    )


def take_step(
    state: FactoredState,
    sums: Sums,
    rows: tf.Tensor,
    row_sums: tf.Tensor,
    num_classes: int,
    learning_rate: tf.Tensor,
    weight_decay: tf.Tensor,
    max_condition: float | None,
) -> tf.Tensor:
    """Takes the step of `factored_update` from this worker's rows and the sums.

    With N = H^T G H, M = I - 2 eta N, F = H^T Y = H^T S U + a w^T + g c^T, a = H^T alpha,
    g = H^T g_s, and H^T E = 2 N Q + F:

        U <- U M,  P <- P M^-1,  w <- M w - eta g,  c <- M c - eta (a + C g)
        V[y] <- V[y] - eta P x_y
        Q <- Q - eta (J + J^T),  J = (H^T E)^T - eta/2 H^T T H,
        H^T T H = 2 (H^T E) N + 2 N F^T + X^T X + a g^T + g a^T + C g g^T

    Nothing is written before the last check; all checks use data that all workers have.

    Cost: O(D^3 + r D^2).

    Args:
        state: A state of TensorFlow's variables, changed in place.
        sums: The sums over all workers.
        rows: `[r]` int64: the distinct rows of V on this worker that are labels of the batch.
        row_sums: x_y of these rows, `[r, D]`, over all examples.
        num_classes: C, over all workers.
        learning_rate: Scalar, eta.
        weight_decay: Scalar, lambda.
        max_condition: As in `factored_update`, also the errors.

    Returns:
        A tensor that is available once the step is sure to be taken.
    """
    decay = learning_rate * weight_decay
    with after(rate_checks(learning_rate, weight_decay)):
        eta = learning_rate / (1 - decay)
    bound = 2 * eta * tf.norm(sums.gram)  # at least 2 eta lambda_max
    is_safe = bound < _SAFE_STEP
    checked = tf.cond(
        is_safe,
        lambda: tf.constant(0),
        lambda: _check_not_divergent(sums.gram, learning_rate, decay),
    )
    with tf.control_dependencies([checked]):
        flat = tf.identity(sums.flat)
    with after([check_finite("sums over the batch", flat)]):
        # Made here: a later `cond` does not wait for inputs that its branch does not read.
        is_sure = tf.constant(True)
        u = state.u.read_value()
        u -= 2 * eta * tf.matmul(u, sums.gram)
        p = tf.cond(
            is_safe, lambda: _solved(state, eta, sums.gram), state.u_inverse_transpose.read_value
        )
        moments = _moments(state, sums, eta, num_classes)
        # If U is merged into V, P is I afterwards, and W has already decayed.
        directions = tf.cond(
            is_safe,
            lambda: tf.matmul(row_sums, p, transpose_b=True),
            lambda: (1 - decay) * row_sums,
        )
    _assign_decayed(state, decay, is_safe, (u, p), moments)
    catch_up(state, rows, tf.cast(sums.slots, tf.int64))
    tf.raw_ops.ResourceScatterSub(resource=state.v.handle, indices=rows, updates=eta * directions)
    if max_condition is not None:
        too_large = _condition_bound(state) > max_condition
        run_if(too_large, lambda: reanchor(state, state.u.read_value()))
    return is_sure


def _solved(state: FactoredState, eta: tf.Tensor, gram: tf.Tensor) -> tf.Tensor:
    """Returns P M^-1 = P + (M^-1 K P^T)^T, M = I - K, as `solve_width`."""
    p, k = state.u_inverse_transpose.read_value(), 2 * eta * gram
    m = tf.eye(state.width, dtype=state.dtype) - k
    return p + tf.transpose(tf.linalg.solve(m, tf.matmul(k, p, transpose_b=True)))


def _check_not_divergent(gram: tf.Tensor, learning_rate: tf.Tensor, decay: tf.Tensor) -> tf.Tensor:
    is_finite = tf.reduce_all(tf.math.is_finite(gram))
    finite = tf.where(is_finite, gram, tf.zeros_like(gram))
    largest = tf.linalg.eigvalsh((finite + tf.transpose(finite)) / 2)[-1]
    with after([divergence_check(tf.where(is_finite, largest, np.inf), learning_rate, decay)]):
        return tf.constant(0)


def _moments(
    state: FactoredState, sums: Sums, eta: tf.Tensor, num_classes: int
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Returns Q', w' and c', before the decay."""
    n, a, g = sums.gram, sums.alpha, sums.g_sum
    q, w, c = (x.read_value() for x in (state.gram, state.shift, state.row_sum))
    f = tf.matmul(sums.targets, state.u.read_value()) + a[:, tf.newaxis] * w + g[:, tf.newaxis] * c
    error = 2 * tf.matmul(n, q) + f
    t = 2 * (tf.matmul(error, n) + tf.matmul(n, f, transpose_b=True)) + sums.labels
    t += a[:, tf.newaxis] * g + g[:, tf.newaxis] * (a + num_classes * g)
    half = tf.transpose(error) - eta / 2 * t
    return (
        q - eta * (half + tf.transpose(half)),
        w - eta * (2 * tf.linalg.matvec(n, w) + g),
        c - eta * (2 * tf.linalg.matvec(n, c) + a + num_classes * g),
    )


def _assign_decayed(
    state: FactoredState,
    decay: tf.Tensor,
    is_safe: tf.Tensor,
    factors: tuple[tf.Tensor, tf.Tensor],
    moments: tuple[tf.Tensor, tf.Tensor, tf.Tensor],
) -> None:
    """Assigns a step except rows of V, with the decay of W; merges U into V if needed.

    `factors`, U' and P', and `moments`, Q', w' and c', are before the decay, eta lambda.
    """
    (u, p), (gram, shift, row_sum) = factors, moments
    # Not multiplied by 1 - decay, whose float32 error of up to 3e-8 would repeat in every step.
    u -= decay * u
    state.gram.assign(gram - decay * (2 - decay) * gram)
    state.shift.assign(shift - decay * shift)
    state.row_sum.assign(row_sum - decay * row_sum)

    def assign_factors() -> None:
        state.u.assign(u)
        state.u_inverse_transpose.assign(p + decay / (1 - decay) * p)

    run_if(is_safe, assign_factors, lambda: reanchor(state, u))


def _condition_bound(state: FactoredState) -> tf.Tensor:
    """Returns |U|_F |P|_F / D: 1 for U = I, and at most the condition number of U."""
    norms = tf.norm(state.u.read_value()) * tf.norm(state.u_inverse_transpose.read_value())
    return norms / state.width


def _different(labels: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the distinct classes of labels, and the position of each label; padding last."""
    at_labels = tf.where(labels >= 0)
    ids, places = tf.unique(tf.gather_nd(labels, at_labels), out_idx=tf.int64)
    nowhere = tf.fill(tf.shape(labels), tf.size(ids, tf.int64))
    return ids, tf.tensor_scatter_nd_update(nowhere, at_labels, places)


def _label_rows(state: FactoredState, ids: tf.Tensor) -> tf.Tensor:
    return tf.pad(current_rows(state, ids), [[0, 1], [0, 0]])
