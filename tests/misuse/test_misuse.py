# SPDX-License-Identifier: Apache-2.0
"""Every misuse of the table, on every class of heads that it concerns."""

from __future__ import annotations

import pytest
from conformance.heads_table import HEADS
from misuse.case import CLASSES, Case
from misuse.misuse_table import MISUSES


def pairs():
    """Heads of a class take turns; in a quick run the classes do, too."""
    for number, misuse in enumerate(MISUSES):
        classes = {}
        for row in filter(misuse.concerns, HEADS):
            classes.setdefault(type(row.make_head(CLASSES)), []).append(row)
        for place, rows in enumerate(classes.values()):
            row = rows[number // len(classes) % len(rows)]
            marks = () if place == number % len(classes) else pytest.mark.thorough
            yield pytest.param(misuse, row, id=f"{row.name}-{misuse.what}", marks=marks)


PAIRS = list(pairs())


@pytest.mark.all_cases
@pytest.mark.parametrize(("misuse", "row"), PAIRS)
def test_misuse(misuse, row, tmp_path):
    case = Case(row, tmp_path)
    with pytest.raises(misuse.error, match=misuse.message):
        misuse.act(case)
    if misuse.keeps_state:
        assert case.is_unchanged()


def test_names_are_unique_and_every_misuse_concerns_a_head():
    names = [misuse.what for misuse in MISUSES]
    assert len(set(names)) == len(names)
    assert {p.values[0].what for p in PAIRS} == set(names)
