# SPDX-License-Identifier: Apache-2.0
"""RowGradients: what a loss of some logits has as gradients, where others take the step."""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf


class RowGradients(NamedTuple):
    """Gradients of a loss of labels and candidates, of the dtype of h.

    Attributes:
        ids: The classes, each once, `[n]`: see `candidate_rows`.
        hidden: dL/dh, `[N, D]`.
        kernel: dL/dW at these classes, `[n, D]`.
        bias: dL/db likewise, `[n]`; without a bias, what it would be.
    """

    ids: tf.Tensor
    hidden: tf.Tensor
    kernel: tf.Tensor
    bias: tf.Tensor
