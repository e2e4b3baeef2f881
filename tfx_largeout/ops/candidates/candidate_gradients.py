# SPDX-License-Identifier: Apache-2.0
"""The gradients of labels and candidates, if another optimizer takes the step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfx_largeout.ops.candidates.candidate_arguments import CandidateArguments
from tfx_largeout.ops.candidates.candidate_update import candidate_update, composed_gradients
from tfx_largeout.ops.candidates.row_gradients import RowGradients
from tfx_largeout.ops.checks import check_dtypes
from tfx_largeout.ops.rows.row_rule import RowRule

_MINUS_GRADIENT = RowRule("sgd", (0.0, 0.0), 0.0, None)  # w - 1 g


class GradientSums:
    """Variables in which the op of `candidate_update` adds up gradients: zeros plus an SGD step.

    `variables` are empty between calls.
    """

    def __init__(self, kernel: Any, bias: Any) -> None:
        # Keras variables have shapes and dtypes before they have values.
        tables = [weight for weight in (kernel, bias) if weight is not None]
        dtypes = [tf.float64 if t.dtype in ("float64", tf.float64) else tf.float32 for t in tables]
        with tf.init_scope():
            self.variables = [
                tf.Variable(
                    tf.zeros([1, *table.shape[1:]], dtype),
                    trainable=False,
                    shape=[None, *table.shape[1:]],
                    name="gradient_sums",
                )
                for table, dtype in zip(tables, dtypes, strict=True)
            ]

    def add_up(
        self,
        number: tf.Tensor,
        hidden: tf.Tensor,
        ids: tuple[tf.Tensor, tf.Tensor],
        gradients: tuple[tf.Tensor, tf.Tensor],
        implementation: str,
    ) -> list[tf.Tensor]:
        """Returns dL/dW `[number, D]`, and dL/db `[number]` if there is a bias.

        `ids` and `gradients` are of labels and candidates, with classes numbered from 0.
        """
        shapes = [[number + 1, *variable.shape[1:]] for variable in self.variables]
        zeros = [tf.zeros(s, v.dtype) for s, v in zip(shapes, self.variables, strict=True)]
        pairs = zip(self.variables, zeros, strict=True)
        with tf.control_dependencies([variable.assign(zero) for variable, zero in pairs]):
            kernel, bias = (*self.variables, None)[:2]
            done = candidate_update(
                kernel,
                bias,
                [],
                [],
                hidden,
                *ids,
                *gradients,
                _MINUS_GRADIENT,
                1.0,
                implementation=implementation,
            )
        with tf.control_dependencies([done]):
            sums = [-variable.read_value()[:-1] for variable in self.variables]
        with tf.control_dependencies(sums):
            empty = [v.assign(tf.zeros([1, *v.shape[1:]], v.dtype)) for v in self.variables]
        with tf.control_dependencies(empty):
            return [tf.identity(total) for total in sums]


def candidate_gradients(
    kernel: Any,
    bias: Any,
    sums: GradientSums,
    hidden: tf.Tensor,
    labels: tf.Tensor,
    candidates: tf.Tensor,
    true_gradient: tf.Tensor,
    candidate_gradient: tf.Tensor,
    *,
    implementation: str = "auto",
) -> RowGradients:
    """Returns the gradients for the step of `candidate_update`, without changing W and b.

    Cost: as `candidate_update`. Memory: the result, twice. Arguments: as `candidate_update`; `sums`
    is for W and b of this dtype.
    """
    arguments = CandidateArguments.of(kernel, bias, hidden, labels, candidates)
    check_dtypes(hidden.dtype, true_gradient=true_gradient, candidate_gradient=candidate_gradient)
    gradients = true_gradient, candidate_gradient
    if arguments.op_module(implementation, "tfx_candidate_update") is None:
        return composed_gradients(arguments, *gradients, [])
    of_hidden = candidate_update(
        kernel,
        bias,
        [],
        [],
        hidden,
        labels,
        candidates,
        *gradients,
        _MINUS_GRADIENT,
        1.0,
        update=False,
        implementation=implementation,
    )
    with tf.control_dependencies([of_hidden]):  # checks the ids
        ids, flat = _numbered([labels, candidates])
    parts = tf.split(flat, [tf.size(labels), tf.size(candidates)])
    of_labels, of_candidates = (
        tf.reshape(part, tf.shape(named))
        for part, named in zip(parts, (labels, candidates), strict=True)
    )
    places = tf.ensure_shape(of_labels, labels.shape), of_candidates
    of_kernel, *of_bias = sums.add_up(tf.size(ids), hidden, places, gradients, implementation)
    return RowGradients(ids, of_hidden, of_kernel, of_bias[0] if of_bias else of_kernel[:, 0])


def candidate_rows(named: Sequence[tf.Tensor]) -> tf.Tensor:
    """Returns the distinct classes of labels `[N, K]` and candidates, padded with -1.

    They are in the order of `candidate_gradients`; candidates may be several concatenated parts.
    """
    return _numbered(named)[0]


def _numbered(named: Sequence[tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the distinct classes, and the position of each id among them; -1 for -1."""
    flat = [tf.reshape(ids, [-1]) for ids in named]
    ids, places = tf.unique(tf.concat([[tf.constant(-1, tf.int64)], *flat], axis=0), tf.int64)
    return ids[1:], places[1:] - 1
