# SPDX-License-Identifier: Apache-2.0
"""The list of public names is that of the package."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def test_the_page_is_up_to_date_and_every_name_says_what_it_is():
    spec = importlib.util.spec_from_file_location("write_api", DOCS / "write_api.py")
    write_api = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(write_api)
    page = write_api.page()
    assert "|  |" not in page, "a public name has no docstring"
    assert (DOCS / "api.md").read_text() == page, "run python docs/write_api.py"
    assert "tfx_largeout.datasets" in sys.modules
