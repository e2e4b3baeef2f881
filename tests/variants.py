# SPDX-License-Identifier: Apache-2.0
"""Parameters of tests, and which of their cases a quick run tries.

For the first test of a file, a quick run tries the first and the last case, in source order; for
the second test the second and the last but one; and so on, cyclically. So it tries both values of a
parameter with two, and tests of the same table take turns. In folders of `ONE_CASE`, where most
cases train a model, it tries only one: for the first test the first, for the second test the
second, and so on. With the mark `all_cases` it tries all cases; with `each_of` and the name of a
parameter (heads in tests/conformance, losses) each kind of its values once, while the other
parameters take turns, from kind to kind and from test to test.

With -k, or with named cases, the rule applies to the selected cases: `pytest -k my_head` runs
my_head in each test that has it. With --thorough all cases are tried.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest

INSTRUCTION_SETS = ["baseline", "avx2", "avx512", "avx512_bf16"]
ONE_CASE = {"callbacks", "compare", "examples", "heads", "hessian_free", "indexes", "layers"}
ONE_CASE |= {"metrics", "misuse", "models", "optimizers", "serving"}
_MARKED = type(pytest.param(0))  # a case with marks, such as `thorough`


def leave_for_thorough_runs(items: Iterable[pytest.Item]) -> None:
    """Marks the cases of a test that a quick run leaves out as thorough."""
    tests = defaultdict(list)
    for item in items:
        if not item.get_closest_marker("thorough") and not item.get_closest_marker("all_cases"):
            tests[item.nodeid.partition("[")[0]].append(item)
    numbers: Counter[str] = Counter()  # of tests with several cases so far, per file
    for test, cases in tests.items():
        file = test.partition("::")[0]
        kept = _kept(cases, numbers[file])
        numbers[file] += len(cases) > 1
        for item in cases:
            if item not in kept:
                item.add_marker(pytest.mark.thorough)


def _kept(cases: Sequence[Any], number: int) -> list[Any]:
    """Returns the cases that the test with this number keeps."""
    mark = cases[0].get_closest_marker("each_of")
    if mark is None or not hasattr(cases[0], "callspec"):
        turn = number % len(cases)
        one = cases[0].path.parent.name in ONE_CASE
        return [cases[turn]] if one else [cases[turn], cases[-1 - turn]]
    parameter, kind_of = mark.args
    kinds = defaultdict(list)
    for item in cases:
        kinds[kind_of(item.callspec.params[parameter])].append(item)
    return [of[(number + place) % len(of)] for place, of in enumerate(kinds.values())]


def thorough(*values: Any) -> list[Any]:
    """Values of a parameter that repeat the test of another value."""
    return [pytest.param(value, marks=pytest.mark.thorough) for value in values]


def cases_of(name: str, values: Sequence[Any]) -> Callable[..., Any]:
    """Marks a test of a parameter whose values name their cases."""
    return pytest.mark.parametrize(name, [_parameter([value]) for value in values])


def each_once(*axes: Sequence[Any]) -> list[Any]:
    """Combinations with each value of each axis; shorter axes repeat."""
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
