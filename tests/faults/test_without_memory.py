# SPDX-License-Identifier: Apache-2.0
"""An op that can't allocate memory raises an error, without changing variables."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from child import run_child
from variants import thorough

PROGRAM = Path(__file__).with_name("without_memory.py")
OPS = [
    "CandidateUpdate",
    *thorough("SoftmaxUpdate", "FactoredUpdate", "StreamedLogits"),
    *thorough("HashIndexUpdate", "BucketCandidates", "RowUpdate"),
]


@pytest.mark.skipif(sys.platform != "linux", reason="limits of memory are Linux's")
@pytest.mark.skipif(
    os.environ.get("TFX_LARGEOUT_FORCE_FALLBACK") == "1",
    reason="the fallback has no memory of its own",
)
@pytest.mark.parametrize("op", OPS)
@pytest.mark.cpu
def test_memory_that_runs_out_is_an_error_and_changes_nothing(op, tmp_path):
    child = run_child(tmp_path, str(PROGRAM), op)
    assert child.returncode == 0, child.stderr[-2000:]
    found = json.loads(child.stdout.splitlines()[-1])
    assert f"{found['op']} could not get " in found["message"]
    bytes_wanted = int(found["message"].split("could not get ")[1].split()[0])
    assert bytes_wanted > 2**20
    assert "no variable has changed" in found["message"]
    assert found["unchanged"]
