# SPDX-License-Identifier: Apache-2.0
"""A file that is loaded without this package names it in Keras's error."""

from __future__ import annotations

import pytest
from child import run_child
from conformance.heads_table import HEADS
from misuse.case import Case

LOAD = "import sys, keras; keras.saving.load_model(sys.argv[1])"


@pytest.mark.thorough
@pytest.mark.parametrize("row", [row for row in HEADS if row.name == "sampled"], ids=lambda r: "")
def test_loading_without_the_import_names_the_package(row, tmp_path):
    path = tmp_path / "model.keras"
    Case(row, tmp_path).model.save(path)
    child = run_child(tmp_path, "-c", LOAD, str(path))
    assert child.returncode != 0
    assert "Could not locate class 'SampledHead'" in child.stderr
    assert "tfx_largeout.heads.sampled" in child.stderr
    child = run_child(tmp_path, "-c", f"import tfx_largeout; {LOAD}", str(path))
    assert child.returncode == 0, child.stderr[-2000:]
