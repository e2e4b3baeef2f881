# SPDX-License-Identifier: Apache-2.0
"""RowGradients: the gradients of a loss of some logits, for another optimizer's step."""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf


class RowGradients(NamedTuple):
    """Gradients of a loss of labels and candidates, of the dtype of h.

    Attributes:
        ids: The distinct classes, `[n]`: see `candidate_rows`.
        hidden: dL/dh, `[N, D]`.
        kernel: dL/dW at these classes, `[n, D]`.
        bias: dL/db at these classes, `[n]`, even if there is no bias.
    """

    ids: tf.Tensor
    hidden: tf.Tensor
    kernel: tf.Tensor
    bias: tf.Tensor
