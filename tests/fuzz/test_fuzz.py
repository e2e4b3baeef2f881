# SPDX-License-Identifier: Apache-2.0
"""Random calls of every op: none kills its process, and results are right."""

from __future__ import annotations

import collections

import numpy as np
import pytest
from fuzz.calls import registrations, run_op
from fuzz.composed import run_composed
from fuzz.kept import KEPT
from fuzz.problems import PROBLEMS, random_call
from fuzz.run import run_calls
from fuzz.verdict import finding
from ops.streamed_logits_cases import use

pytestmark = pytest.mark.cpu

_CALLS = 2000
# Composed ops take most of the time: they make every third call of each op as well.
_COMPARE_EVERY = 3


@pytest.fixture(autouse=True)
def with_the_library(monkeypatch):
    use("baseline", monkeypatch)
    monkeypatch.delenv("TFX_LARGEOUT_ISA")


def test_every_op_of_the_library_has_a_problem_with_all_of_its_arguments():
    assert set(PROBLEMS) == set(registrations())
    for op, op_def in registrations().items():
        call = random_call(op, np.random.default_rng(0))
        assert list(call.inputs) == [argument.name for argument in op_def.input_arg]
        # Lengths of lists, and dtypes that inputs have, are never given.
        implied = {x for a in op_def.input_arg for x in (a.number_attr, a.type_attr)}
        given = {attribute.name for attribute in op_def.attr} - implied
        assert set(call.attributes) - implied == given


@pytest.mark.parametrize("call", KEPT, ids=lambda call: call.notes[0])
def test_calls_that_once_found_something(call):
    composed = run_composed(call)
    assert composed is not None
    assert finding(call, run_op(call), composed) is None


@pytest.mark.thorough
def test_random_calls():
    reports = list(run_calls(1, 0, _CALLS, _COMPARE_EVERY))
    assert [report.index for report in reports] == list(range(_CALLS))
    found = [f"{r.op} --seed 1 --call {r.index}: {r.finding}" for r in reports if r.finding]
    assert not found, "\n".join(found)
    outcomes = collections.Counter(report.outcome for report in reports)
    # Enough reach the arithmetic, and enough the checks.
    assert outcomes["accepted"] > _CALLS / 3
    assert outcomes["refused"] > _CALLS / 6
    assert sum(report.is_compared for report in reports) > _CALLS / 4
