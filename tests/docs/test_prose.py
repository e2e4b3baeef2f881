# SPDX-License-Identifier: Apache-2.0
"""What docs/prose.py finds, if proselint is installed (`pip install ".[dev]"`)."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

pytest.importorskip("proselint", exc_type=ImportError)
PROSE = Path(__file__).parents[2] / "docs" / "prose.py"
SPEC = importlib.util.spec_from_file_location("prose", PROSE)
prose = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(prose)


def test_phrases_are_found_with_their_lines_in_prose_alone():
    page = "# It pays\n\nIt\npays.\n\n```\nit pays\n```\n\n| `pays` | bytes a class |\n"
    assert prose.found_in(page) == [
        (4, "write 'helps, is faster', not 'pays'"),
        (10, "write 'X per Y', not 'bytes a class'"),
    ]


def test_of_a_notebook_its_texts_are_read(tmp_path):
    cells = [{"cell_type": "markdown", "source": ["# It\n", "pays"]}]
    cells.append({"cell_type": "code", "source": ["refuse()"]})
    (tmp_path / "a.ipynb").write_text(json.dumps({"cells": cells}))
    assert prose.text_of(tmp_path / "a.ipynb") == "# It\npays"


def test_of_a_source_file_docstrings_and_comments_are_read(tmp_path):
    source = '"""It\npays."""\n\nx = "it pays"  # refused\ny = {"bytes": "a class"}\n'
    (tmp_path / "a.py").write_text(source + "# It goes\n# by\n")
    assert [line for line, _ in prose.found_in(prose.text_of(tmp_path / "a.py"))] == [2, 4, 6]
