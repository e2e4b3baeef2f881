# SPDX-License-Identifier: Apache-2.0
"""Logits of labels and candidate classes, from their rows of W alone."""

from __future__ import annotations

from typing import Any, NamedTuple

import tensorflow as tf

from tfx_largeout.ops.candidates.candidate_arguments import CandidateArguments
from tfx_largeout.ops.candidates.candidate_logits_composed import candidate_logits_composed
from tfx_largeout.ops.implementation import op_module
from tfx_largeout.ops.rows.row_rule import OP_DTYPES


class CandidateLogits(NamedTuple):
    """What `candidate_logits` returns; floats are float32, or float64 for a float64 kernel."""

    true_logits: tf.Tensor
    """`[N, K]`: o at the labels; 0 at padding."""
    candidate_logits: tf.Tensor
    """`[N, S]`: o at the candidates; 0 where there is none."""
    hits: tf.Tensor
    """`[N, S]` bool: the candidate is one of the example's labels."""


def candidate_logits(
    kernel: Any,
    bias: Any,
    hidden: tf.Tensor,
    labels: tf.Tensor,
    candidates: tf.Tensor,
    *,
    implementation: str = "auto",
) -> CandidateLogits:
    """Computes o_c = W[c] . h_i + b_c for the labels and the candidates of each example.

    Cost: O(N (K + S) D), whatever C is. Memory beside the result: O((N + S) D) for shared
    candidates; 12 N (K + S) bytes and at most 1 MiB for an example's own.

    Args:
        kernel: W, `[C, D]`: `tf.Variable` or `keras.Variable`, float32, bfloat16 or float64
            (composed only). It is read in place and never copied.
        bias: b, `[C]`, likewise, of the same dtype; or None.
        hidden: h, `[N, D]`, finite; float32, or float64 beside a float64 kernel. All arithmetic is
            in this dtype.
        labels: `[N, K]` int64, padded with -1.
        candidates: `[S]` int64: those of all examples; or `[N, S]`: an example's own. Padded
            with -1. A class may come up several times.
        implementation: As `row_update`.

    Returns:
        A `CandidateLogits`. No gradient is defined: see `candidate_update`.

    Raises:
        ValueError: A static shape is wrong.
        TypeError: A dtype is wrong.
        RuntimeError: `implementation="op"` and the library is not there.
        tf.errors.InvalidArgumentError: h is not finite, an id is out of range, or shapes disagree.
            Our own GPU kernels take such an id for padding and don't wait: what tensors hold is an
            error of a later call of this function, of `candidate_update` or `streamed_logits`.
    """
    arguments = CandidateArguments.of(kernel, bias, hidden, labels, candidates)
    module = op_module(
        implementation,
        "tfx_candidate_logits",
        "kernel",
        arguments.kernel,
        OP_DTYPES,
        OP_DTYPES,
    )
    if module is None:
        return CandidateLogits(*candidate_logits_composed(arguments))
    return CandidateLogits(
        *module.tfx_candidate_logits(
            kernel=arguments.kernel.handle,
            bias=[] if arguments.bias is None else [arguments.bias.handle],
            hidden=arguments.hidden,
            labels=arguments.labels,
            candidates=arguments.candidates,
            dtype=arguments.kernel.dtype,
        )
    )
