# SPDX-License-Identifier: Apache-2.0
"""The checks of plain arguments: whole numbers, numbers, and choices by name."""

from __future__ import annotations

import contextlib
import math
import numbers
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np


def integer_argument(name: str, value: Any, at_least: int, at_most: int | None = None) -> int:
    """Returns an argument that counts something as an int.

    Args:
        name: The name of the argument, for the error.
        value: What the user gave: an integer of Python or NumPy.
        at_least: The smallest value that is allowed.
        at_most: The largest. Default None: there is none.

    Raises:
        ValueError: The value is not an integer (a boolean is none), or it is out of range.
    """
    is_integer = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    if not is_integer or value < at_least or (at_most is not None and value > at_most):
        limits = f"{at_least}" if at_most is None else f"{at_least} and at most {at_most}"
        raise ValueError(f"{name} must be an integer of at least {limits}; got {value!r}")
    return int(value)


def class_argument(name: str, value: Any) -> int | None:
    """Returns an argument that is an id, of a class or of what stands in the place of one, or None.

    Args:
        name: The name of the argument, for the error.
        value: What the user gave.

    Raises:
        ValueError: The value is neither None nor an integer that fits into int64.
    """
    limits = np.iinfo(np.int64)
    if value is None:
        return None
    return integer_argument(name, value, int(limits.min), int(limits.max))


def integers_argument(name: str, values: Any, at_least: int) -> list[int]:
    """Returns an argument that is several integers to try, in rising order, each once.

    Args:
        name: The name of the argument, for the error.
        values: What the user gave: a sequence of integers, not an empty one.
        at_least: The smallest value that is allowed.

    Raises:
        ValueError: There is no such sequence, or one of the values is not such an integer.
    """
    if not isinstance(values, Sequence) or isinstance(values, str) or not values:
        raise ValueError(f"{name} must be a sequence of integers; got {values!r}")
    return sorted({integer_argument(f"each of {name}", value, at_least) for value in values})


def number_argument(
    name: str,
    value: Any,
    above: float | None = None,
    at_least: float | None = None,
    below: float = math.inf,
    at_most: float = math.inf,
) -> float:
    """Returns an argument that is a finite number as a float.

    Args:
        name: The name of the argument, for the error.
        value: What the user gave: whatever `float` takes, but for booleans and strings.
        above: The value must be above this. Default None: see `at_least`.
        at_least: The value must be at least this. Default None: it may be negative.
        below: The value must be below this. Default infinity.
        at_most: The value must be at most this. Default infinity.

    Raises:
        ValueError: The value is not such a number.
    """
    number = math.nan
    if not isinstance(value, (bool, str, bytes)) and not _is_no_number(value):
        with contextlib.suppress(TypeError, ValueError, OverflowError):
            number = float(value)
    low_enough = number > above if above is not None else number >= _or(at_least, -math.inf)
    if not (low_enough and number < below and number <= at_most and math.isfinite(number)):
        rules = [
            f"{words} {limit:g}"
            for words, limit in (
                ("above", _or(above, math.inf)),
                ("at least", _or(at_least, math.inf)),
                ("below", below),
                ("at most", at_most),
            )
            if limit < math.inf
        ]
        rule = " ".join(["a finite number", " and ".join(rules)]).rstrip()
        raise ValueError(f"{name} must be {rule}; got {value!r}")
    return number


def choice_argument(name: str, value: Any, choices: Sequence[str]) -> str:
    """Returns an argument that is one of a few names.

    Args:
        name: The name of the argument, for the error.
        value: What the user gave.
        choices: The names that are allowed.

    Raises:
        ValueError: The value is none of them.
    """
    if not isinstance(value, str) or value not in choices:
        names = ", ".join(repr(choice) for choice in choices)
        raise ValueError(f"{name} must be one of {names}; got {value!r}")
    return value


def instance_argument(name: str, value: Any, kind: type, default: Callable[[], Any]) -> Any:
    """Returns an argument that is an object of a kind, or a new one where it is None.

    Args:
        name: The name of the argument, for the error.
        value: What the user gave.
        kind: The class that it must be of.
        default: Makes the object that None stands for.

    Raises:
        ValueError: The value is of another class.
    """
    if value is None:
        return default()
    if not isinstance(value, kind):
        raise ValueError(f"{name} must be a {kind.__name__}; got {value!r}")
    return value


def _is_no_number(value: Any) -> bool:
    """Says whether a value of NumPy is of a dtype that has no numbers."""
    return isinstance(value, (np.ndarray, np.generic)) and value.dtype.kind not in "iuf"


def _or(limit: float | None, default: float) -> float:
    return default if limit is None else limit
