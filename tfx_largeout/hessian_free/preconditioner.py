# SPDX-License-Identifier: Apache-2.0
"""Preconditioner: what an approximate inverse must do to be used in conjugate gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tfx_largeout.hessian_free.curvature_pairs import CurvaturePairs


class Preconditioner:
    """An approximate inverse M of B = G + lambda I, applied to residuals: z = M r.

    Before each run of conjugate gradients the trainer calls `prepare`, after it `observe`. Alone, a
    preconditioner is the `preconditioner` argument of `conjugate_gradient`.

    `num_pairs` says how many pairs (s, y) it wants to observe.
    """

    num_pairs = 0

    def prepare(self, damping: float, squared_gradients: Callable[[], tf.Tensor]) -> None:
        """Gets ready for a run.

        Args:
            damping: lambda of the run.
            squared_gradients: Returns the sum over the curvature sample of the squared gradients of
                the single examples, over the number of examples, `[n]`. It costs a gradient, so
                call it only if it is needed.
        """

    def observe(self, pairs: CurvaturePairs, damping: float) -> None:
        """Takes the pairs of a run that has ended.

        Args:
            pairs: (s, y = (G + lambda I) s).
            damping: lambda of that run.
        """

    def __call__(self, residual: tf.Tensor) -> tf.Tensor:
        """Returns z = M r, `[n]`, for r `[n]`."""
        raise NotImplementedError

    def state(self) -> dict[str, Any]:
        """Returns what must be saved, as arrays by name."""
        return {}

    def restore(self, state: dict[str, np.ndarray]) -> None:
        """Takes back what `state` gave."""
