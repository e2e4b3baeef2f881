# SPDX-License-Identifier: Apache-2.0
"""IdentityPreconditioner: none."""

from __future__ import annotations

import tensorflow as tf

from tfx_largeout.hessian_free.preconditioner import Preconditioner


class IdentityPreconditioner(Preconditioner):
    """M = I: plain conjugate gradients."""

    def __call__(self, residual: tf.Tensor) -> tf.Tensor:
        return residual
