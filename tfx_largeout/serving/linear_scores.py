# SPDX-License-Identifier: Apache-2.0
"""A head as rows of W, biases, and what is multiplied with them."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import tensorflow as tf

from tfx_largeout.heads.base import Head
from tfx_largeout.heads.factored_weights import FactoredWeights
from tfx_largeout.heads.kernel_head import KernelHead
from tfx_largeout.ops.rows.variable_rows import bare_variable

# Of the heads of this package. A subclass with its own may compute anything.
_LINEAR = (FactoredWeights.flat_logits, KernelHead.flat_logits)


class LinearScores(NamedTuple):
    """The logits o_c = row_c . q + bias_c + shift, where q and the shift follow from h.

    Attributes:
        kernel: `[C, D]`, the rows.
        bias: `[C]`, or None.
        query: Returns q `[N, D]` and the shift `[N]`, both float32, of h `[N, D]`.
    """

    kernel: tf.Variable
    bias: tf.Variable | None
    query: Callable[[tf.Tensor], tuple[tf.Tensor, tf.Tensor]]


def linear_scores(head: Head) -> LinearScores | None:
    """Returns the rows of a head; None for one whose logits are no such products.

    Raises:
        TypeError: The head has rows, and logits that a class outside of this package computes.
    """
    if isinstance(head, (FactoredWeights, KernelHead)) and type(head).flat_logits not in _LINEAR:
        raise TypeError(
            "head must have the logits W h + b for export; got one with a flat_logits of its own, "
            f"a {type(head).__name__}"
        )
    if isinstance(head, FactoredWeights):
        head.settle()
        return LinearScores(head.state.v.value, None, lambda h: _coordinates(head, h))
    if isinstance(head, KernelHead):
        head.refuse_soft_cap("export")
        bias = None if head.bias is None else bare_variable(head.bias)
        return LinearScores(bare_variable(head.kernel), bias, _as_it_is)
    return None


def _coordinates(head: FactoredWeights, hidden: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    queries, shift = head.coordinates(hidden)
    return tf.cast(queries, tf.float32), tf.cast(shift, tf.float32)


def _as_it_is(hidden: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    queries = tf.cast(hidden, tf.float32)
    return queries, tf.zeros_like(queries[:, 0])
