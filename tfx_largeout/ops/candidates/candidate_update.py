# SPDX-License-Identifier: Apache-2.0
"""The backward step of labels and candidates: updates their rows of W and b, and no other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfx_largeout.ops.candidates.candidate_arguments import CandidateArguments
from tfx_largeout.ops.candidates.candidate_update_composed import candidate_update_composed
from tfx_largeout.ops.checks import check_dtypes
from tfx_largeout.ops.implementation import op_module
from tfx_largeout.ops.rows.row_rule import (
    OP_DTYPES,
    RowRule,
    check_slots,
    numbers_of,
    rate_in,
)
from tfx_largeout.ops.rows.variable_rows import bare_variable


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
    implementation: str = "auto",
) -> tf.Tensor:
    """Takes a step on the rows of labels and candidates, and returns dL/dh.

    With g the gradients of the loss with respect to the logits of `candidate_logits`, and the sums
    over all places (i, k) of labels and (i, s) of candidates where class c stands:

        dL/dh_i = sum_c g_ic W[c],   dL/dW[c] = sum_i g_ic h_i,   dL/db_c = sum_i g_ic

    A class that comes up several times gets one step, with the sum of its gradients. One that comes
    up at all gets a step, if only with gradient 0. The result does not depend on the number of
    threads.

    Cost: O(N (K + S) D), whatever C is. Memory: O((N + S) D) for shared candidates, O(N (S + D))
    for an example's own.

    Args:
        kernel: W, `[C, D]`, changed in place: as `candidate_logits`.
        bias: b, `[C]`, likewise, or None.
        kernel_slots: The variables that `rule.slots` names, for W; changed in place.
        bias_slots: Those for b; none without a bias.
        hidden: h, `[N, D]`, finite.
        labels: `[N, K]` int64, padded with -1.
        candidates: `[S]` or `[N, S]` int64, padded with -1.
        true_gradient: `[N, K]`, finite; ignored at padding.
        candidate_gradient: `[N, S]`, finite; ignored where there is no candidate.
        rule: What to do with a row.
        learning_rate: eta, a scalar of at least 0; eta weight_decay must be below 1.
        update: Whether to take the step; False: only the gradient.
        implementation: As `row_update`.

    Returns:
        dL/dh at the W before the step, `[N, D]`, of the dtype of `hidden`.

    Raises:
        ValueError: The rule is none; slots don't fit it; a static shape is wrong.
        TypeError: A dtype is wrong.
        RuntimeError: `implementation="op"` and the library is not there.
        tf.errors.InvalidArgumentError: A number is not finite, an id or the rate is out of range,
            or shapes disagree. Nothing is changed then. Our own GPU kernels don't wait: then dL/dh
            is 0, and what tensors hold is an error of a later call, as of `candidate_logits`.
    """
    rule.check()
    arguments = CandidateArguments.of(kernel, bias, hidden, labels, candidates)
    kernel_slots = [bare_variable(slot) for slot in kernel_slots]
    bias_slots = [bare_variable(slot) for slot in bias_slots]
    check_slots("kernel", arguments.kernel, kernel_slots, rule)
    if arguments.bias is not None:
        check_slots("bias", arguments.bias, bias_slots, rule)
    elif bias_slots:
        raise ValueError(f"bias_slots must be empty without a bias; got {len(bias_slots)}")
    check_dtypes(hidden.dtype, true_gradient=true_gradient, candidate_gradient=candidate_gradient)
    learning_rate = rate_in(hidden.dtype, learning_rate)
    module = op_module(
        implementation,
        "tfx_candidate_update",
        "kernel",
        arguments.kernel,
        OP_DTYPES,
        OP_DTYPES,
    )
    if module is None:
        slots = (kernel_slots, bias_slots)
        return candidate_update_composed(
            arguments, slots, true_gradient, candidate_gradient, rule, learning_rate, update
        )
    return module.tfx_candidate_update(
        kernel=arguments.kernel.handle,
        bias=[] if arguments.bias is None else [arguments.bias.handle],
        kernel_slots=[slot.handle for slot in kernel_slots],
        bias_slots=[slot.handle for slot in bias_slots],
        hidden=arguments.hidden,
        labels=arguments.labels,
        candidates=arguments.candidates,
        true_gradient=true_gradient,
        candidate_gradient=candidate_gradient,
        learning_rate=learning_rate,
        rule=numbers_of(rule),
        method=rule.method,
        update=update,
        dtype=arguments.kernel.dtype,
    )
