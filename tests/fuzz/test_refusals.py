# SPDX-License-Identifier: Apache-2.0
"""A wrong argument raises an error, and nothing is changed."""

from __future__ import annotations

from pathlib import Path

import pytest
from fuzz.run import Report, run_program
from ops.streamed_logits_cases import use


@pytest.fixture(scope="module")
def reports() -> list[Report]:
    """The findings over the table; a call that kills its process is one."""
    from fuzz.refusals import REFUSALS

    return list(run_program(Path(__file__).with_name("refusals.py"), 0, len(REFUSALS)))


def test_each_wrong_argument_is_refused(reports, monkeypatch):
    use("baseline", monkeypatch)
    found = [f"{report.op}: {report.finding}" for report in reports if report.finding]
    assert not found, "\n".join(found)
