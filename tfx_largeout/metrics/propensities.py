# SPDX-License-Identifier: Apache-2.0
"""The propensity model of Jain, Prabhu and Varma (2016)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tfx_largeout.arguments import integer_argument, number_argument


def propensities(
    label_counts: Any, num_examples: int, a: float = 0.55, b: float = 1.5
) -> np.ndarray:
    """Estimates how likely it is that a relevant label was annotated, from its training count.

    For a label with `N_l` of the N training examples:

        p_l = 1 / (1 + c exp(-a log(N_l + b))),    c = (log N - 1) (b + 1)^a

    The paper's constants: a = 0.5, b = 0.4 for Wikipedia; a = 0.6, b = 2.6 for Amazon; a = 0.55,
    b = 1.5 otherwise.

    Cost: O(C).

    Args:
        label_counts: `[C]` integers, the number of training examples that have each label.
        num_examples: Number N of training examples, at least 3 (the model needs log N > 1).
        a: Not negative. Default 0.55.
        b: Positive. Default 1.5.

    Returns:
        `[C]` float64 propensities in (0, 1).

    Raises:
        TypeError: `label_counts` are not integers.
        ValueError: A value breaks its rule.

    References:
        Jain, Prabhu and Varma, Extreme multi-label loss functions for recommendation, tagging,
        ranking and other missing label applications, 2016, equation 2.
    """
    counts = np.asarray(label_counts)
    _check_counts(counts)
    num_examples = integer_argument("num_examples", num_examples, at_least=3)
    if counts.max() > num_examples:
        raise ValueError(
            f"label_counts must not exceed num_examples={num_examples}; "
            f"got {counts.max()} for label {counts.argmax()}"
        )
    a = number_argument("a", a, at_least=0)
    b = number_argument("b", b, above=0)
    c = (math.log(num_examples) - 1) * (b + 1) ** a
    return 1 / (1 + c * (counts + b) ** -a)


def _check_counts(counts: np.ndarray) -> None:
    if counts.ndim != 1 or counts.size == 0:
        raise ValueError(f"label_counts must have shape [C], C > 0; got shape {counts.shape}")
    if not np.issubdtype(counts.dtype, np.integer):
        raise TypeError(f"label_counts must be integers; got {counts.dtype}")
    if counts.min() < 0:
        raise ValueError(
            f"label_counts must not be negative; got {counts.min()} for label {counts.argmin()}"
        )
