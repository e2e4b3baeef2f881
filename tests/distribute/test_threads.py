# SPDX-License-Identifier: Apache-2.0
"""Collectives, the global batch and meetings, losses and heads, without the cost of processes."""

from __future__ import annotations

from pathlib import Path

import pytest
from child import run_child

PROGRAMS = [
    "threads.py",
    "threads_of_factored.py",
    "threads_of_indexes.py",
    "threads_of_hessian_free.py",
]


@pytest.mark.parametrize("name", PROGRAMS)
def test_workers_of_one_process(name, tmp_path):
    program = Path(__file__).with_name(name)
    done = run_child(tmp_path, str(program))
    assert done.returncode == 0, done.stderr[-3000:]
    names = [line.split("(")[0][4:] for line in program.read_text().splitlines()]
    assert done.stdout.split() == [name for name in names if name.startswith("check_")]
