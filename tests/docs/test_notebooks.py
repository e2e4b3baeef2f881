# SPDX-License-Identifier: Apache-2.0
"""The notebooks run, and contain their output."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from child import run_child
from nbformat.v4 import new_code_cell, new_notebook, new_output

DOCS = Path(__file__).parents[2] / "docs"
NAMES = ("first_steps", "candidates", "serving")


def check(folder, notebook):
    return run_child(folder, str(DOCS / "run_notebooks.py"), "--check", str(notebook))


def test_all_notebooks_are_run():
    assert {path.stem for path in (DOCS / "notebooks").glob("*.ipynb")} == set(NAMES)


@pytest.mark.thorough
@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_runs(tmp_path, name):
    child = check(tmp_path, DOCS / "notebooks" / f"{name}.ipynb")
    assert child.returncode == 0, child.stderr[-2000:]


@pytest.mark.parametrize(
    ("source", "stored", "error"),
    [
        ("print(1)", "2", None),
        ("print(1)", "", r"stored is ''; it prints '1\n'"),
        ("1", "1", "a cell must print what it shows; got execute_result"),
        ("1 / 0", "", "ZeroDivisionError"),
    ],
)
def test_what_a_check_finds(tmp_path, source, stored, error):
    outputs = [new_output("stream", text=stored)] if stored else []
    notebook = new_notebook(cells=[new_code_cell(source, outputs=outputs)])
    nbformat.write(notebook, tmp_path / "small.ipynb")
    child = check(tmp_path, tmp_path / "small.ipynb")
    assert (child.returncode == 0) == (error is None)
    assert error is None or error in child.stderr
