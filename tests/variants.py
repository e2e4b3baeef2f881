# SPDX-License-Identifier: Apache-2.0
"""Parameters of tests: of many, a quick run tries `QUICK_CASES`, and a thorough one all."""

from __future__ import annotations

import itertools
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest

QUICK_CASES = 2
_MARKED = type(pytest.param(0))  # what has marks, as those of `thorough`


def leave_for_thorough_runs(items: Iterable[pytest.Item]) -> None:
    """Marks as thorough what a quick run leaves out of the cases of a test.

    It keeps those whose ids have the smallest checksums: of each test other ones, and the same
    each time. A test with the mark `all_cases` keeps all.
    """
    cases = defaultdict(list)
    for item in items:
        if not item.get_closest_marker("thorough") and not item.get_closest_marker("all_cases"):
            cases[item.nodeid.partition("[")[0]].append(item)
    for of_one_test in cases.values():
        of_one_test.sort(key=lambda item: zlib.crc32(item.nodeid.encode()))
        for item in of_one_test[QUICK_CASES:]:
            item.add_marker(pytest.mark.thorough)


def thorough(*values: Any) -> list[Any]:
    """Values of a parameter that repeat what another one tries."""
    return [pytest.param(value, marks=pytest.mark.thorough) for value in values]


def cases_of(name: str, values: Sequence[Any]) -> Callable[..., Any]:
    """Marks a test of a parameter whose values name their cases."""
    return pytest.mark.parametrize(name, [_parameter([value]) for value in values])


def each_once(*axes: Sequence[Any]) -> list[Any]:
    """Combinations in which each value of each axis comes up, the shorter axes again and again."""
    turns = range(max(map(len, axes)))
    return [_parameter([axis[turn % len(axis)] for axis in axes]) for turn in turns]


def product(*axes: Sequence[Any]) -> list[Any]:
    """All combinations, with the marks of their values."""
    return [_parameter(values) for values in itertools.product(*axes)]


def _parameter(values: Sequence[Any]) -> Any:
    marked = [value for value in values if isinstance(value, _MARKED)]
    bare = [value.values[0] if isinstance(value, _MARKED) else value for value in values]
    names = [getattr(v, "name", None) or getattr(v, "__name__", None) or str(v) for v in bare]
    return pytest.param(*bare, id="-".join(names), marks=[m for v in marked for m in v.marks])
