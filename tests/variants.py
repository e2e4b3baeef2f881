# SPDX-License-Identifier: Apache-2.0
"""Parameters of tests, of which a quick run tries some and a thorough one all."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import pytest


def thorough(*values: Any) -> list[Any]:
    """Values of a parameter that repeat what another one tries."""
    return [pytest.param(value, marks=pytest.mark.thorough) for value in values]


def each_once(*axes: Sequence[Any]) -> list[Any]:
    """Combinations in which each value of each axis comes up, the shorter axes again and again."""
    turns = range(max(map(len, axes)))
    return [_parameter([axis[turn % len(axis)] for axis in axes], True) for turn in turns]


def every_third(parameters: list[Any], offset: int = 0) -> list[Any]:
    """Combinations of which a quick run tries every third."""
    marks = pytest.mark.thorough
    return [
        each if place % 3 == offset else pytest.param(*each.values, id=each.id, marks=marks)
        for place, each in enumerate(parameters)
    ]


def product(*axes: Sequence[Any]) -> list[Any]:
    """All combinations, of which a quick run tries those of `each_once`, but of `thorough`."""
    quick_axes = [[place for place, value in enumerate(axis) if _is_quick(value)] for axis in axes]
    turns = range(max(map(len, quick_axes)))
    quick = {tuple(axis[turn % len(axis)] for axis in quick_axes) for turn in turns}
    combinations = itertools.product(*(list(enumerate(axis)) for axis in axes))
    return [
        _parameter(
            [_value_of(value) for _, value in pairs], tuple(place for place, _ in pairs) in quick
        )
        for pairs in combinations
    ]


def some_of(name: str, values: Sequence[Any], number: int = 1) -> Callable[..., Any]:
    """Marks a test of a parameter; a quick run tries so many values, of each test other ones."""

    def mark(test: Callable[..., Any]) -> Callable[..., Any]:
        start = zlib.crc32(test.__name__.encode())
        quick = {(start + turn * len(values) // number) % len(values) for turn in range(number)}
        parameters = [_parameter([value], place in quick) for place, value in enumerate(values)]
        return pytest.mark.parametrize(name, parameters)(test)

    return mark


def _is_quick(value: Any) -> bool:
    return not getattr(value, "marks", ())  # what `thorough` returns has one


def _value_of(value: Any) -> Any:
    return value if _is_quick(value) else value.values[0]


def _parameter(values: Sequence[Any], quick: bool) -> Any:
    names = [getattr(v, "name", None) or getattr(v, "__name__", None) or str(v) for v in values]
    return pytest.param(*values, id="-".join(names), marks=() if quick else pytest.mark.thorough)
