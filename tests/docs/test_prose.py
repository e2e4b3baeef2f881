# SPDX-License-Identifier: Apache-2.0
"""What docs/prose.py finds, where proselint is installed (`pip install ".[dev]"`)."""

from __future__ import annotations

import importlib.util
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


def test_all_pages_are_clean():
    pages = [page for pattern in prose.PAGES for page in sorted(prose.ROOT.glob(pattern))]
    found = {page.name: prose.found_in(page.read_text()) for page in pages}
    assert not {name: each for name, each in found.items() if each}
