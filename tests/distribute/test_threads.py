# SPDX-License-Identifier: Apache-2.0
"""Collectives, the global batch and meetings, losses and heads, without the cost of processes."""

from __future__ import annotations

from pathlib import Path

from child import run_child

PROGRAM = Path(__file__).with_name("threads.py")


def test_workers_of_one_process(tmp_path):
    done = run_child(tmp_path, str(PROGRAM))
    assert done.returncode == 0, done.stderr[-3000:]
    names = [line.split("(")[0][4:] for line in PROGRAM.read_text().splitlines()]
    assert done.stdout.split() == [name for name in names if name.startswith("check_")]
