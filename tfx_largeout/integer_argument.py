# SPDX-License-Identifier: Apache-2.0
"""The check of arguments that are numbers of things."""

from __future__ import annotations

import numbers
from typing import Any


def integer_argument(name: str, value: Any, at_least: int) -> int:
    """Returns `value` as an int.

    Args:
        name: Of the argument, for the error.
        value: Python's or NumPy's integer.
        at_least: The smallest that is allowed.

    Raises:
        ValueError: It is not an integer, or too small.
    """
    is_integer = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    if not is_integer or value < at_least:
        raise ValueError(f"{name} must be an integer of at least {at_least}; got {value!r}")
    return int(value)
