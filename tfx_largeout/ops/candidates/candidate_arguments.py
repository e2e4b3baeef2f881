# SPDX-License-Identifier: Apache-2.0
"""The arguments of the candidate ops: weights, a batch, and candidate classes."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any, NamedTuple

import tensorflow as tf

from tfx_largeout.ops.checks import (
    check_dtypes,
    check_finite,
    check_ids,
    check_shape,
    require_rank,
)
from tfx_largeout.ops.implementation import op_module
from tfx_largeout.ops.rows.row_rule import OP_DTYPES, RowRule, compute_dtype
from tfx_largeout.ops.rows.variable_rows import bare_variable
from tfx_largeout.run_time_checks import Check, after


class CandidateArguments(NamedTuple):
    """Arguments with consistent static shapes and dtypes.

    Attributes:
        kernel: W, `[C, D]`: `tf.Variable` or `keras.Variable`, float32, bfloat16 or float64
            (composed only). It is read in place and never copied.
        bias: b, `[C]`, likewise, of the same dtype; or None.
        hidden: h, `[N, D]`, finite; float32, or float64 with a float64 kernel. All arithmetic is in
            this dtype.
        labels: `[N, K]` int64, padded with -1.
        candidates: `[S]` int64: for all examples; or `[N, S]`: per example. Padded with -1. A class
            may be repeated.
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
        """Unwraps variables and checks dtypes and static shapes."""
        kernel, bias = bare_variable(kernel), None if bias is None else bare_variable(bias)
        check_dtypes(compute_dtype(kernel), hidden=hidden)
        check_dtypes(tf.int64, labels=labels, candidates=candidates)
        require_rank("kernel", kernel, 2)
        if kernel.shape[0] == 0:
            raise ValueError(f"kernel must be [C, D] with C at least 1; got shape {kernel.shape}")
        require_rank("hidden", hidden, 2)
        require_rank("labels", labels, 2)
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
        """Whether each example has separate candidates."""
        return self.candidates.shape.rank == 2

    @property
    def inputs(self) -> dict[str, Any]:
        """The inputs for the custom ops, except for the candidates."""
        return {
            "kernel": self.kernel.handle,
            "bias": [] if self.bias is None else [self.bias.handle],
            "hidden": self.hidden,
            "labels": self.labels,
            "dtype": self.kernel.dtype,
        }

    def op_module(
        self, implementation: str, op: str, rule: RowRule | None = None
    ) -> ModuleType | None:
        """Returns the module of custom ops if it should be used, else None: see `op_module`.

        The GPU kernels don't support options of a rule.
        """
        on_gpu = () if rule is not None and rule.has_options else OP_DTYPES
        return op_module(implementation, op, "kernel", self.kernel, OP_DTYPES, on_gpu)

    def checked(
        self, checks: Sequence[Check | None] = (), classes_of_labels: int | None = None
    ) -> CandidateArguments:
        """Returns the same, so that ops with them run after all checks, and after `checks`.

        Ids of labels are below `classes_of_labels`, None: C.
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
