# SPDX-License-Identifier: Apache-2.0
"""A linear layer and its gradients in NumPy float64, on a dense input."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Result(NamedTuple):
    outputs: np.ndarray
    kernel_gradient: np.ndarray
    bias_gradient: np.ndarray


def linear(x, kernel, bias, output_gradient) -> Result:
    """`y = x W + b`, and the gradients of `sum(y * output_gradient)`."""
    x, kernel, bias, g = (np.asarray(a, np.float64) for a in (x, kernel, bias, output_gradient))
    return Result(x @ kernel + bias, x.T @ g, g.sum(axis=0))
