# SPDX-License-Identifier: Apache-2.0
"""The checks of plain arguments: whole numbers, numbers, and choices by name.

Each takes the name of the argument, for the error, and its value; it returns the argument, or
raises a `ValueError`. `full_name` is for errors of layers, models and optimizers.
"""

from __future__ import annotations

import contextlib
import math
import numbers
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np


def integer_argument(name: str, value: Any, at_least: int, at_most: int | None = None) -> int:
    """Returns a Python or NumPy integer (not a boolean) within limits as an int."""
    is_integer = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    if not is_integer or value < at_least or (at_most is not None and value > at_most):
        limits = f"{at_least}" if at_most is None else f"{at_least} and at most {at_most}"
        raise ValueError(f"{name} must be an integer of at least {limits}; got {value!r}")
    return int(value)


def class_argument(name: str, value: Any) -> int | None:
    """Returns an id (of a class, or a special one) within int64, or None."""
    limits = np.iinfo(np.int64)
    if value is None:
        return None
    return integer_argument(name, value, int(limits.min), int(limits.max))


def integers_argument(name: str, values: Any, at_least: int) -> list[int]:
    """Returns a non-empty sequence of distinct integers in rising order."""
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
    """Returns a number (not a boolean or string) as a finite float within limits."""
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


def number_or(name: str, value: Any, others: tuple[str | None, ...], **limits: float) -> Any:
    """As `number_argument`, but some names, or None, are allowed, too, and returned unchanged."""
    if (value is None or isinstance(value, str)) and value in others:
        return value
    try:
        return number_argument(name, value, **limits)
    except ValueError as error:
        allowed = " and ".join(map(repr, others)) + (" are" if len(others) > 1 else " is")
        raise ValueError(f"{error}; {allowed} allowed, too") from error


def at_most_classes(
    name: str, number: float, num_classes: int, first_id: int = 0, why: str = ""
) -> None:
    """Raises ValueError if a number is above the number of classes from `first_id` on."""
    if number > num_classes - first_id:
        less = f" - first_id={first_id}" if first_id else ""
        raise ValueError(
            f"{name} must be at most num_classes={num_classes}{less}{why}; got {number}"
        )


def flag_argument(name: str, value: Any) -> bool:
    """Returns True or False, also for NumPy's."""
    if not isinstance(value, (bool, np.bool_)):
        raise ValueError(f"{name} must be True or False; got {value!r}")
    return bool(value)


def choice_argument(name: str, value: Any, choices: Sequence[str]) -> str:
    """Checks that a value is one of a few names."""
    if not isinstance(value, str) or value not in choices:
        names = ", ".join(repr(choice) for choice in choices)
        raise ValueError(f"{name} must be one of {names}; got {value!r}")
    return value


def instance_argument(name: str, value: Any, kind: type, default: Callable[[], Any]) -> Any:
    """Returns an object of a type; for None, the result of `default`."""
    if value is None:
        return default()
    if not isinstance(value, kind):
        raise ValueError(f"{name} must be a {kind.__name__}; got {value!r}")
    return value


def full_name(owner: Any) -> str:
    """Returns the class and the name of a layer, a model or an optimizer."""
    return f"{type(owner).__name__} {owner.name!r}"


def _is_no_number(value: Any) -> bool:
    """Returns whether a NumPy value has a dtype without numbers."""
    return isinstance(value, (np.ndarray, np.generic)) and value.dtype.kind not in "iuf"


def _or(limit: float | None, default: float) -> float:
    return default if limit is None else limit
