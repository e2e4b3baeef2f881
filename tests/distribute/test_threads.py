# SPDX-License-Identifier: Apache-2.0
"""Collectives, the global batch and meetings, losses and heads, without the cost of processes."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from child import run_child
from variants import thorough

pytestmark = pytest.mark.cpu
QUICK, LONG = "threads.py", ["threads_of_factored.py", "threads_of_indexes.py"]


@pytest.mark.parametrize("name", [QUICK, *thorough(*LONG, "threads_of_hessian_free.py")])
def test_workers_of_one_process(name, tmp_path):
    run(name, tmp_path)


@pytest.mark.thorough
@pytest.mark.parametrize("name", [QUICK, *LONG])
def test_the_same_with_other_losses_and_sizes(name, tmp_path):
    run(name, tmp_path, "thorough")


def run(name, folder, *mark):
    """Runs the checks of a program with this mark, or without any."""
    program = Path(__file__).with_name(name)
    done = run_child(folder, str(program), *mark)
    assert done.returncode == 0, done.stderr[-3000:]
    marks = {(): "", ("thorough",): "@pytest.mark.thorough"}
    pairs = itertools.pairwise(program.read_text().splitlines())
    checks = [line for before, line in pairs if line[:10] == "def check_" and before == marks[mark]]
    assert done.stdout.split() == [line[4:].split("(")[0] for line in checks]
