# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import sys

import pytest
from child import run_child

PEAK_OF_A_CHILD = """
import subprocess, sys
b"x" * 2**30
child = "from tfx_largeout.compare.worker import _peak_bytes; print(_peak_bytes())"
subprocess.run([sys.executable, "-c", child], check=True)
"""


@pytest.mark.thorough
@pytest.mark.skipif(sys.platform != "linux", reason="macOS has no such floor")
def test_peak_memory_is_not_that_of_the_process_which_started_this_one(tmp_path):
    child = run_child(tmp_path, "-c", PEAK_OF_A_CHILD)
    assert 2**26 < int(child.stdout) < 2**30, child.stderr
