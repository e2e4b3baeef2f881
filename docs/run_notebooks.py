# SPDX-License-Identifier: Apache-2.0
"""Runs the notebooks of docs/notebooks, and writes what they print into them.

    python docs/run_notebooks.py                       # after a change: needs pip install ".[test]"
    python docs/run_notebooks.py --check FILE.ipynb    # as the tests do: writes nothing

Stored are texts alone, without counts of cells, times and what goes to standard error, so that a
notebook's diff is what a reader sees. A check fails where a cell fails, or where one prints and
nothing is stored, or the reverse; numbers differ from machine to machine.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).parent / "notebooks"


def outputs_of(notebook: nbformat.NotebookNode) -> list[str]:
    """Runs the cells in a new folder; returns the output of each code cell.

    Raises:
        nbclient.exceptions.CellExecutionError: A cell fails.
        ValueError: A cell has an output other than text.
    """
    with tempfile.TemporaryDirectory() as folder:
        where = {"metadata": {"path": folder}}
        NotebookClient(notebook, timeout=600, startup_timeout=300, resources=where).execute()
    return [_text(cell.outputs) for cell in _code_cells(notebook)]


def _code_cells(notebook: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def _text(outputs: Sequence[nbformat.NotebookNode]) -> str:
    for output in outputs:
        if output.output_type != "stream":
            raise ValueError(f"a cell must print what it shows; got {output.output_type}")
    return "".join(output.text for output in outputs if output.name == "stdout")


def _write(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    printed = outputs_of(nbformat.read(path, as_version=4))
    for cell, text in zip(_code_cells(notebook), printed, strict=True):
        cell.execution_count = None
        cell.outputs = [nbformat.v4.new_output("stream", text=text)] if text else []
    nbformat.write(notebook, path)


def _check(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    stored = [_text(cell.outputs) for cell in _code_cells(notebook)]
    for number, (old, new) in enumerate(zip(stored, outputs_of(notebook), strict=True)):
        if bool(old) != bool(new):
            sys.exit(f"{path.name}, code cell {number}: stored is {old!r}; it prints {new!r}")


def main() -> None:
    """Runs the notebooks that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("notebooks", nargs="*", type=Path, default=sorted(FOLDER.glob("*.ipynb")))
    parser.add_argument("--check", action="store_true", help="write nothing")
    arguments = parser.parse_args()
    for path in arguments.notebooks:
        (_check if arguments.check else _write)(path)


if __name__ == "__main__":
    main()
