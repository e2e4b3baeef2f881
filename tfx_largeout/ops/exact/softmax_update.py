# SPDX-License-Identifier: Apache-2.0
"""The backward step of the softmax over all classes: updates every row of W and b."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfx_largeout.arguments import choice_argument
from tfx_largeout.ops.candidates.candidate_arguments import CandidateArguments
from tfx_largeout.ops.checks import (
    check_dtypes,
    check_finite,
    check_learning_rate,
    check_shape,
    finite_gradients,
    require_shape,
)
from tfx_largeout.ops.devices import is_on_gpu
from tfx_largeout.ops.exact.products import PRODUCTS
from tfx_largeout.ops.exact.softmax_update_composed import softmax_update_composed
from tfx_largeout.ops.implementation import op_module
from tfx_largeout.ops.rows.row_rule import OP_DTYPES, RowRule, check_slots, numbers_of, rate_in
from tfx_largeout.ops.rows.variable_rows import bare_variable


def softmax_update(
    kernel: Any,
    bias: Any,
    kernel_slots: Sequence[Any],
    bias_slots: Sequence[Any],
    hidden: tf.Tensor,
    labels: tf.Tensor,
    logsumexp: tf.Tensor,
    target_gradient: tf.Tensor,
    logsumexp_gradient: tf.Tensor,
    rule: RowRule,
    learning_rate: Any,
    *,
    mean_gradient: tf.Tensor | None = None,
    products: str = "float32",
    update: bool = True,
    implementation: str = "auto",
) -> tf.Tensor:
    """Takes a step on all rows of W and b, and returns dL/dh, for L of statistics of o.

    These are log Z, the target logits and the mean logit. With o = W h + b, p_ic = exp(o_ic) / Z_i,
    a = dL/d log Z, m = dL/d mean_c o_c and t_ik = dL/do at label k of i,

        g_ic = dL/do_ic = a_i p_ic + m_i / C + sum over k with y_ik = c of t_ik,
        dL/dh_i = sum_c g_ic W[c],   dL/dW[c] = sum_i g_ic h_i,   dL/db_c = sum_i g_ic.

    Blocks of rows are updated one after the other: neither o nor g `[B, C]` nor dL/dW `[C, D]` is
    ever built. The result does not depend on the number of threads.

    Cost: 6 B C D FLOP; W and its slots are read and written once. Memory: O(B D), for up to 64 sums
    (at most 32 MiB, or 8 of them: no more threads than sums), and up to 2 MiB or some hundred rows
    a thread.

    Args:
        kernel: W, `[C, D]`, changed in place: as `softmax_selection`.
        bias: b, `[C]`, likewise, or None.
        kernel_slots: The variables that `rule.slots` names, for W; changed in place.
        bias_slots: Those for b; none without a bias.
        hidden: h, `[B, D]`, finite; float32, or float64 beside a float64 kernel.
        labels: `[B, K]` int64, padded with -1.
        logsumexp: log Z, `[B]`, finite, of the same W, b and `products`.
        target_gradient: t, `[B, K]`, finite; ignored at padding.
        logsumexp_gradient: a, `[B]`, finite.
        rule: What to do with a row.
        learning_rate: eta, a scalar of at least 0; eta weight_decay must be below 1.
        mean_gradient: m, `[B]`, finite. Default None: 0.
        products: `"float32"`; or `"bfloat16"`: W, h and g are rounded to it for all three products,
            and sums are float32. See `softmax_selection`.
        update: Whether to take the step; False: only the gradient.
        implementation: As `row_update`.

    Returns:
        dL/dh at the W before the step, `[B, D]`, of the dtype of `hidden`.

    Raises:
        ValueError: The rule is none; slots don't fit it; a static shape is wrong; `products` is
            unknown.
        TypeError: A dtype is wrong.
        RuntimeError: `implementation="op"` and the library is not there.
        tf.errors.InvalidArgumentError: A number is not finite, a label or the rate is out of range,
            or shapes disagree. Nothing is changed then.
    """
    rule.check()
    choice_argument("products", products, PRODUCTS)
    arguments = CandidateArguments.of(kernel, bias, hidden, labels, tf.zeros([0], tf.int64))
    kernel_slots = [bare_variable(slot) for slot in kernel_slots]
    bias_slots = [bare_variable(slot) for slot in bias_slots]
    check_slots("kernel", arguments.kernel, kernel_slots, rule)
    if arguments.bias is not None:
        check_slots("bias", arguments.bias, bias_slots, rule)
    elif bias_slots:
        raise ValueError(f"bias_slots must be empty without a bias; got {len(bias_slots)}")
    tensors = {
        "logsumexp": logsumexp,
        "target_gradient": target_gradient,
        "logsumexp_gradient": logsumexp_gradient,
    }
    check_dtypes(hidden.dtype, **tensors)
    batch, num_labels = hidden.shape[0], labels.shape[1]
    if mean_gradient is not None:
        check_dtypes(hidden.dtype, mean_gradient=mean_gradient)
        require_shape("mean_gradient", "[B] with the B of hidden", mean_gradient, [batch])
    require_shape("logsumexp", "[B] with the B of hidden", logsumexp, [batch])
    require_shape("target_gradient", "[B, K] as labels", target_gradient, [batch, num_labels])
    require_shape("logsumexp_gradient", "[B] with the B of hidden", logsumexp_gradient, [batch])
    learning_rate = rate_in(hidden.dtype, learning_rate)
    module = op_module(
        implementation, "tfx_softmax_update", "kernel", arguments.kernel, OP_DTYPES, OP_DTYPES
    )
    if module is None or is_on_gpu(arguments.kernel):  # whose kernel can't refuse what tensors hold
        arguments, target_gradient = _checked(
            arguments, **tensors, mean_gradient=mean_gradient, rate=learning_rate, rule=rule
        )
    if module is None:
        slots = (kernel_slots, bias_slots)
        return softmax_update_composed(
            arguments,
            slots,
            logsumexp,
            target_gradient,
            logsumexp_gradient,
            mean_gradient,
            rule,
            learning_rate,
            products,
            update,
        )
    return module.tfx_softmax_update(
        kernel=arguments.kernel.handle,
        bias=[] if arguments.bias is None else [arguments.bias.handle],
        kernel_slots=[slot.handle for slot in kernel_slots],
        bias_slots=[slot.handle for slot in bias_slots],
        hidden=arguments.hidden,
        labels=arguments.labels,
        logsumexp=logsumexp,
        target_gradient=target_gradient,
        logsumexp_gradient=logsumexp_gradient,
        mean_gradient=tf.zeros([0]) if mean_gradient is None else mean_gradient,
        learning_rate=learning_rate,
        rule=numbers_of(rule),
        method=rule.method,
        products=products,
        update=update,
        dtype=arguments.kernel.dtype,
    )


def _checked(
    arguments: CandidateArguments,
    logsumexp: tf.Tensor,
    target_gradient: tf.Tensor,
    logsumexp_gradient: tf.Tensor,
    mean_gradient: tf.Tensor | None,
    rate: tf.Tensor,
    rule: RowRule,
) -> tuple[CandidateArguments, tf.Tensor]:
    """Returns the arguments and the target gradients, 0 at padding, after all checks."""
    by_example = tf.shape(arguments.hidden)[:1]
    vectors = {"logsumexp": logsumexp, "logsumexp_gradient": logsumexp_gradient}
    if mean_gradient is not None:
        vectors["mean_gradient"] = mean_gradient
    rule_of_shape, by_label = "[B] with the B of hidden", tf.shape(arguments.labels)
    arguments = arguments.checked(
        [
            *(check_shape(name, rule_of_shape, x, by_example) for name, x in vectors.items()),
            check_shape("target_gradient", "[B, K] as labels", target_gradient, by_label),
            *(check_finite(name, x) for name, x in vectors.items()),
            check_learning_rate(rate, rule.weight_decay),
        ]
    )
    gradients = {"target_gradient": (arguments.labels, target_gradient)}
    return arguments, finite_gradients(**gradients)[0]
