# SPDX-License-Identifier: Apache-2.0
"""The example that needs nothing but the package, as a user runs it."""

from __future__ import annotations

from pathlib import Path

import pytest
from child import run_child

EXAMPLE = Path(__file__).parents[2] / "examples" / "wordnet_reverse_dictionary.py"


@pytest.mark.thorough
def test_trains_evaluates_and_answers(tmp_path):
    child = run_child(tmp_path, str(EXAMPLE), "--epochs", "1")
    assert child.returncode == 0, child.stderr[-2000:]
    assert "val_precision_at_1: 0." in child.stdout and "nan" not in child.stdout
    answers = [line for line in child.stdout.splitlines() if line.startswith("  answers: ")]
    assert len(answers) == 8
    assert all(line.count("%") == 3 for line in answers)
    assert any((tmp_path / "runs" / "reverse_dictionary").iterdir())
