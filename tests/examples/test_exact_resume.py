# SPDX-License-Identifier: Apache-2.0
"""The example as its page tells users to run it: killed, and started again."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from child import run_child, start_child

EXAMPLE = str(Path(__file__).parents[2] / "examples" / "exact_resume.py")
OPTIONS = ("--classes=2000", "--examples=2000", "--epochs=3", "--every=10", "--folder")


def last_line(folder: Path, name: str) -> str:
    done = run_child(folder, EXAMPLE, *OPTIONS, name)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.splitlines()[-1]


@pytest.mark.thorough
@pytest.mark.cpu
def test_a_killed_run_prints_the_same(tmp_path):
    expected = last_line(tmp_path, "whole")
    assert expected.startswith("weights: ")
    process = start_child(tmp_path, EXAMPLE, *OPTIONS, "killed")
    while not list((tmp_path / "killed").glob("*.npz")) and process.poll() is None:
        time.sleep(0.01)
    process.kill()
    process.communicate()
    assert process.returncode == -9, "it had no time to end"
    assert last_line(tmp_path, "killed") == expected
