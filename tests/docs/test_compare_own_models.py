# SPDX-License-Identifier: Apache-2.0
"""The example of docs/compare_own_models.md, with smaller numbers."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "compare_own_models.md"


@pytest.mark.thorough
def test_the_examples_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {}
    for block in re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL):
        block = block.replace("_000", "00").replace("seconds=20", "epochs=0.1")
        exec(block.replace('"midx"})', '"midx"}, epochs=0.1)'), names)
    assert [row.status for row in names["comparison"].rows] == ["done"] * 4
    reports = sorted(tmp_path.glob("runs/*/comparison.html"))
    assert len(reports) == 3
