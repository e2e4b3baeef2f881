# SPDX-License-Identifier: Apache-2.0
"""Every misuse of the table, on every head that it concerns."""

from __future__ import annotations

import pytest
from conformance.heads_table import HEADS, marks_of
from misuse.case import Case
from misuse.misuse_table import MISUSES

PAIRS = [
    pytest.param(misuse, row, id=f"{row.name}-{misuse.what}", marks=marks_of(row))
    for misuse in MISUSES
    for row in HEADS
    if misuse.concerns(row)
]


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
