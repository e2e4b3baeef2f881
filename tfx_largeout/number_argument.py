# SPDX-License-Identifier: Apache-2.0
"""The check of an argument that must be a finite number."""

from __future__ import annotations

import math
from typing import Any


def number_argument(
    name: str,
    value: Any,
    above: float | None = None,
    at_least: float | None = None,
    below: float = math.inf,
) -> float:
    """Returns `value` as a float.

    Args:
        name: Of the argument, for the error.
        value: What the user gave.
        above: It must be above this (give this or `at_least`).
        at_least: It must be at least this.
        below: It must be below this. Default infinity.

    Raises:
        ValueError: It is not such a number.
    """
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    low_enough = number > above if above is not None else number >= (at_least or 0)
    if not (low_enough and number < below):
        rule = f"above {above:g}" if above is not None else f"at least {at_least or 0:g}"
        rule += f" and below {below:g}" if below < math.inf else ""
        raise ValueError(f"{name} must be a finite number {rule}; got {value!r}")
    return number
