# SPDX-License-Identifier: Apache-2.0
"""Examples as modules."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
IMPORTED_ANEW = (
    "histories",
    "ranking",
    "recommender",
    "next_item",
    "two_tower",
    "recommenders",
    "recommender_scale",
)


@pytest.fixture
def load_example(monkeypatch):
    """Loads an example by name, with the modules beside it."""

    def load(name):
        _import_again_from(monkeypatch, EXAMPLES)
        spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return load


@pytest.fixture
def import_modules(monkeypatch):
    """Imports modules of the benchmarks and the examples again, by their names."""

    def load(*names):
        _import_again_from(monkeypatch, EXAMPLES, ROOT / "benchmarks")
        return [importlib.import_module(name) for name in names]

    return load


def _import_again_from(monkeypatch, *folders):
    for folder in folders:
        monkeypatch.syspath_prepend(str(folder))
    for module in IMPORTED_ANEW:
        monkeypatch.delitem(sys.modules, module, raising=False)
