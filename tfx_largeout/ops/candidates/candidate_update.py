# SPDX-License-Identifier: Apache-2.0
"""The backward step of labels and candidates: updates only their rows of W and b."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tfx_largeout.memory import StepSize
from tfx_largeout.ops.candidates.candidate_arguments import CandidateArguments
from tfx_largeout.ops.candidates.row_gradients import RowGradients
from tfx_largeout.ops.checks import check_dtypes, check_shape, finite_gradients
from tfx_largeout.ops.rows.row_rule import RowRule
from tfx_largeout.ops.rows.row_update import RowStep
from tfx_largeout.ops.rows.variable_rows import gather
from tfx_largeout.run_time_checks import Check


def candidate_update(
    kernel: Any,
    bias: Any,
    kernel_slots: Sequence[Any],
    bias_slots: Sequence[Any],
    hidden: tf.Tensor,
    labels: tf.Tensor,
    candidates: tf.Tensor,
    true_gradient: tf.Tensor,
    candidate_gradient: tf.Tensor,
    rule: RowRule,
    learning_rate: Any,
    *,
    update: bool = True,
    gradient: bool = True,
    implementation: str = "auto",
) -> tf.Tensor:
    """Takes a step on the rows of labels and candidates, and returns dL/dh.

    With g the gradients of the loss with respect to the logits of `candidate_logits`, and the sums
    over all positions (i, k) of labels and (i, s) of candidates with class c:

        dL/dh_i = sum_c g_ic W[c],   dL/dW[c] = sum_i g_ic h_i,   dL/db_c = sum_i g_ic

    A repeated class gets one step, with the sum of its gradients. A class with gradient 0 gets a
    step, too. The result does not depend on the number of threads.

    Cost: O(N (K + S) D), independent of C. Memory: O((N + S) D) for shared candidates, O(N (S + D))
    for candidates per example.

    Args:
        kernel: W, `[C, D]`, changed in place: as in `CandidateArguments`, like the other arguments
            in it.
        bias: b, `[C]`, likewise, or None.
        kernel_slots: The variables of `rule.slots` for W; changed in place.
        bias_slots: The slots for b; empty without a bias.
        hidden: h, `[N, D]`.
        labels: `[N, K]`.
        candidates: `[S]` or `[N, S]`.
        true_gradient: `[N, K]`, finite; ignored at padding.
        candidate_gradient: `[N, S]`, finite; ignored at padding.
        rule: The update of a row.
        learning_rate: eta, a scalar of at least 0; eta weight_decay must be below 1.
        update: Whether to take the step; False: only the gradient.
        gradient: Whether to return dL/dh; False: only the step, at half the cost of both.
        implementation: See `ops`, which has the errors, too. This package's GPU kernels don't wait:
            dL/dh is 0 after an error, which a later call raises, as in `candidate_logits`.

    Returns:
        dL/dh at the W before the step, `[N, D]`, of the dtype of `hidden`; `[0, D]` if it is not
        wanted.
    """
    arguments = CandidateArguments.of(kernel, bias, hidden, labels, candidates)
    step = RowStep.of(*arguments[:2], kernel_slots, bias_slots, rule, learning_rate)
    check_dtypes(hidden.dtype, true_gradient=true_gradient, candidate_gradient=candidate_gradient)
    module = arguments.op_module(implementation, "tfx_candidate_update", rule)
    if module is None:
        of_logits = true_gradient, candidate_gradient
        return _composed(arguments, step, *of_logits, update, gradient)
    return module.tfx_candidate_update(
        **arguments.inputs,
        **step.inputs,
        candidates=candidates,
        true_gradient=true_gradient,
        candidate_gradient=candidate_gradient,
        update=update,
        gradient=gradient,
    )


def update_workspace(width: int, step: StepSize, num_candidates: int, own: bool) -> int:
    """Returns the bytes that a call of the custom op needs, as in `core/candidate_update.cc`.

    Args:
        width: D.
        step: N, K and the threads.
        num_candidates: S.
        own: Whether candidates are per example, `[N, S]`.
    """
    n, entries = step.examples, step.examples * (step.labels + num_candidates)
    if not own:
        rows_and_hidden = (2 * num_candidates + n) * width
        return 4 * (rows_and_hidden + 48 * step.threads * n) + 24 * (
            n * step.labels + num_candidates
        )
    sums = max(min(2**24 // max(n * width, 1), entries // max(4 * n, 1)), 4)
    return 24 * entries + 4 * min(-(-entries // 512), 64, sums) * n * width


def _composed(
    arguments: CandidateArguments,
    step: RowStep,
    true_gradient: tf.Tensor,
    candidate_gradient: tf.Tensor,
    update: bool,
    gradient: bool,
) -> tf.Tensor:
    """Same results as the custom op of `candidate_update`."""
    found = composed_gradients(arguments, true_gradient, candidate_gradient, [step.check_rate()])
    if update:
        step.take(found.ids, found.kernel, found.bias, found.hidden)
    if not gradient:
        return found.hidden[:0]
    return tf.ensure_shape(found.hidden, arguments.hidden.shape)


def composed_gradients(
    arguments: CandidateArguments,
    true_gradient: tf.Tensor,
    candidate_gradient: tf.Tensor,
    checks: list[Check],
) -> RowGradients:
    """Returns the gradients for a step, after all checks. Memory: O(n D) for n classes."""
    sizes = tf.stack([tf.shape(arguments.hidden)[0], tf.shape(arguments.candidates)[-1]])
    rule = "[N, S] with the N of hidden and the S of candidates"
    labels = tf.shape(arguments.labels)
    arguments = arguments.checked(
        [
            check_shape("true_gradient", "[N, K] as the labels", true_gradient, labels),
            check_shape("candidate_gradient", rule, candidate_gradient, sizes),
            *checks,
        ]
    )
    true_gradient, candidate_gradient = finite_gradients(
        true_gradient=(arguments.labels, true_gradient),
        candidate_gradient=(arguments.candidates, candidate_gradient),
    )
    gradients = _own if arguments.is_own else _shared
    return RowGradients(*gradients(arguments, true_gradient, candidate_gradient))


class _Terms(NamedTuple):
    """Entries of a sparse matrix G `[N, n]` of gradients: rows are examples, columns classes."""

    examples: tf.Tensor
    classes: tf.Tensor
    values: tf.Tensor

    @classmethod
    def of(cls, ids: tf.Tensor, gradient: tf.Tensor) -> _Terms:
        """Creates it from the entries of `[N, n]` ids and gradients, without padding."""
        places = tf.where(ids >= 0)
        return cls(places[:, 0], tf.gather_nd(ids, places), tf.gather_nd(gradient, places))


# Each returns the touched classes [n], dL/dh, and dL/dW [n, D] and dL/db [n] at these classes.


def _own(
    arguments: CandidateArguments, true_gradient: tf.Tensor, candidate_gradient: tf.Tensor
) -> tuple[tf.Tensor, ...]:
    labels = _Terms.of(arguments.labels, true_gradient)
    candidates = _Terms.of(arguments.candidates, candidate_gradient)
    terms = _Terms(*(tf.concat(pair, axis=0) for pair in zip(labels, candidates, strict=True)))
    ids, places = tf.unique(terms.classes, tf.int64)
    return ids, *_products(arguments, terms._replace(classes=places), ids)


def _shared(
    arguments: CandidateArguments, true_gradient: tf.Tensor, candidate_gradient: tf.Tensor
) -> tuple[tf.Tensor, ...]:
    labels = _Terms.of(arguments.labels, true_gradient)
    there = arguments.candidates >= 0
    candidates = tf.boolean_mask(arguments.candidates, there)
    gradient = tf.boolean_mask(candidate_gradient, there, axis=1)
    ids, places = tf.unique(tf.concat([labels.classes, candidates], axis=0), tf.int64)
    num_labels = tf.size(labels.classes)
    label_places, candidate_places = places[:num_labels], places[num_labels:]
    hidden_gradient, kernel_gradient, bias_gradient = _products(
        arguments, labels._replace(classes=label_places), ids
    )
    rows = tf.cast(gather(arguments.kernel, candidates), gradient.dtype)
    hidden_gradient += tf.matmul(gradient, rows)
    by_candidate = tf.matmul(gradient, arguments.hidden, transpose_a=True)
    kernel_gradient += _sum_by_place(by_candidate, candidate_places, ids)
    bias_gradient += _sum_by_place(tf.reduce_sum(gradient, axis=0), candidate_places, ids)
    return ids, hidden_gradient, kernel_gradient, bias_gradient


def _sum_by_place(values: tf.Tensor, places: tf.Tensor, ids: tf.Tensor) -> tf.Tensor:
    return tf.math.unsorted_segment_sum(values, places, tf.size(ids))


def _products(
    arguments: CandidateArguments, terms: _Terms, ids: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Returns G W, G^T H and G^T 1, where column p of G belongs to class ids[p]."""
    hidden = arguments.hidden
    indices = tf.stack([terms.examples, terms.classes], axis=1)
    shape = tf.stack([tf.shape(hidden, tf.int64)[0], tf.size(ids, tf.int64)])
    sparse = {"a_indices": indices, "a_values": terms.values, "a_shape": shape}
    rows = tf.cast(gather(arguments.kernel, ids), hidden.dtype)
    hidden_gradient = tf.raw_ops.SparseTensorDenseMatMul(**sparse, b=rows)
    kernel_gradient = tf.raw_ops.SparseTensorDenseMatMul(**sparse, b=hidden, adjoint_a=True)
    bias_gradient = tf.math.unsorted_segment_sum(terms.values, terms.classes, tf.size(ids))
    return hidden_gradient, kernel_gradient, bias_gradient
