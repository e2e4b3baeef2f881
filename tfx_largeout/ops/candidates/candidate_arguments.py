# SPDX-License-Identifier: Apache-2.0
"""What the candidate ops get: weights, a batch, and candidate classes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tfx_largeout.ops.checks import (
    check_dtypes,
    check_finite,
    check_ids,
    check_learning_rate,
    check_shape,
    finite_gradients,
)
from tfx_largeout.ops.rows.row_rule import compute_dtype
from tfx_largeout.ops.rows.variable_rows import bare_variable
from tfx_largeout.run_time_checks import Check, after


class CandidateArguments(NamedTuple):
    """Arguments that fit each other as far as their static shapes and dtypes tell.

    Attributes:
        kernel: W, `[C, D]`.
        bias: b, `[C]`, or None.
        hidden: h, `[N, D]`.
        labels: `[N, K]` int64.
        candidates: `[S]` or `[N, S]` int64.
    """

    kernel: tf.Variable
    bias: tf.Variable | None
    hidden: tf.Tensor
    labels: tf.Tensor
    candidates: tf.Tensor

    @classmethod
    def of(
        cls, kernel: Any, bias: Any, hidden: tf.Tensor, labels: tf.Tensor, candidates: tf.Tensor
    ) -> CandidateArguments:
        """Unwraps variables and checks dtypes and static shapes.

        Raises:
            ValueError: A static shape is wrong.
            TypeError: A dtype is wrong.
        """
        kernel, bias = bare_variable(kernel), None if bias is None else bare_variable(bias)
        check_dtypes(compute_dtype(kernel), hidden=hidden)
        check_dtypes(tf.int64, labels=labels, candidates=candidates)
        _check_rank("kernel", kernel, 2)
        if kernel.shape[0] == 0:
            raise ValueError(f"kernel must be [C, D] with C at least 1; got shape {kernel.shape}")
        _check_rank("hidden", hidden, 2)
        _check_rank("labels", labels, 2)
        if candidates.shape.rank not in (1, 2):
            raise ValueError(f"candidates must have rank 1 or 2; got shape {candidates.shape}")
        if bias is not None:
            check_dtypes(kernel.dtype, bias=bias)
            if bias.shape != kernel.shape[:1]:
                raise ValueError(
                    f"bias must be [C] with the C of kernel, {kernel.shape[0]}; "
                    f"got shape {bias.shape}"
                )
        return cls(kernel, bias, hidden, labels, candidates)

    @property
    def num_classes(self) -> int:
        """C."""
        return self.kernel.shape[0]

    @property
    def is_own(self) -> bool:
        """Whether each example has candidates of its own."""
        return self.candidates.shape.rank == 2

    def checked(
        self, checks: Sequence[Check | None] = (), classes_of_labels: int | None = None
    ) -> CandidateArguments:
        """Returns the same; what is computed from them runs after all checks, and `checks`.

        Args:
            checks: More of them. Default none.
            classes_of_labels: What ids of labels are below. Default None: C.
        """
        if classes_of_labels is None:
            classes_of_labels = self.num_classes
        batch = tf.shape(self.hidden)[0]
        by_label = tf.stack([batch, tf.shape(self.labels)[1]])
        width = self.kernel.shape[1]
        every = [
            check_shape("hidden", "[N, D] with the D of kernel", self.hidden, [batch, width]),
            check_shape("labels", "[N, K] with the N of hidden", self.labels, by_label),
            check_ids("labels", self.labels, -1, classes_of_labels),
            check_ids("candidates", self.candidates, -1, self.num_classes),
            check_finite("hidden", self.hidden),
            *checks,
        ]
        if self.is_own:
            own = tf.stack([batch, tf.shape(self.candidates)[1]])
            rule = "[S], or [N, S] with the N of hidden"
            every.append(check_shape("candidates", rule, self.candidates, own))
        with after(every):
            return self._replace(
                hidden=tf.identity(self.hidden),
                labels=tf.identity(self.labels),
                candidates=tf.identity(self.candidates),
            )

    def checked_step(
        self,
        true_gradient: tf.Tensor,
        candidate_gradient: tf.Tensor,
        learning_rate: tf.Tensor,
        weight_decay: float,
    ) -> tuple[CandidateArguments, tf.Tensor, tf.Tensor]:
        """As `checked`, for a step with gradients `[N, K]` and `[N, S]` of the logits.

        Returns:
            The arguments, and the gradients, 0 at padding.
        """
        sizes = tf.stack([tf.shape(self.hidden)[0], tf.shape(self.candidates)[-1]])
        rule = "[N, S] with the N of hidden and the S of candidates"
        labels = tf.shape(self.labels)
        arguments = self.checked(
            [
                check_shape("true_gradient", "[N, K] as the labels", true_gradient, labels),
                check_shape("candidate_gradient", rule, candidate_gradient, sizes),
                check_learning_rate(learning_rate, weight_decay),
            ]
        )
        true_gradient, candidate_gradient = finite_gradients(
            true_gradient=(arguments.labels, true_gradient),
            candidate_gradient=(arguments.candidates, candidate_gradient),
        )
        return arguments, true_gradient, candidate_gradient


def _check_rank(name: str, value: tf.Tensor | tf.Variable, rank: int) -> None:
    if value.shape.rank != rank:
        raise ValueError(f"{name} must have rank {rank}; got shape {value.shape}")
