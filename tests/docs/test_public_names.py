# SPDX-License-Identifier: Apache-2.0
"""The list of public names, a page of the site."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def test_every_public_name_says_what_it_is():
    spec = importlib.util.spec_from_file_location("public_names", DOCS / "public_names.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    page = module.page()
    assert "|  |" not in page, "a public name has no docstring"
    assert page.count("| `tlo.") <= 128  # a short list is easier to read
    assert "tfx_largeout.datasets" in sys.modules
