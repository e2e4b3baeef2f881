# SPDX-License-Identifier: Apache-2.0
"""A few of the kills of `killed_runs.py`, which makes as many as one likes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from child import run_child

SCRIPT = str(Path(__file__).with_name("killed_runs.py"))


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["sampled", "factored", "hessian_free"])
@pytest.mark.cpu
def test_killed_runs_end_as_if_they_had_not_been(kind, tmp_path):
    done = run_child(tmp_path, SCRIPT, kind, "3", str(tmp_path / "runs"))
    assert done.returncode == 0, done.stderr[-2000:]
    summary = json.loads(done.stdout.splitlines()[-1])
    assert summary["kills"] == 3
    assert summary["same"] == summary["runs"] >= 1
