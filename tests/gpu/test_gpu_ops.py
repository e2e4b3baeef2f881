# SPDX-License-Identifier: Apache-2.0
"""The GPU ops in TensorFlow, without a GPU: kernels that run on the processor, a stand-in driver.

TFX_GPU_ON_CPU names the library of kernels, built with TFX_CUDA=on_cpu; `.ci/lint` does that.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from child import start_child
from gpu.build_driver import build_driver

LIBRARY = os.environ.get("TFX_GPU_ON_CPU", "")
pytestmark = [
    pytest.mark.skipif(not LIBRARY, reason="TFX_GPU_ON_CPU names no library"),
    pytest.mark.skipif(sys.platform != "linux", reason="the stand-in driver is for Linux"),
]


@pytest.mark.parametrize(
    "name",
    ["stand_in_program.py", "stand_in_factored.py", "stand_in_hashing.py", "stand_in_errors.py"],
)
def test_gpu_ops_agree_with_those_of_the_processor(tmp_path, name):
    build_driver(tmp_path)
    program = Path(__file__).with_name(name)
    environment = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path), "CUDA_VISIBLE_DEVICES": "0"}
    child = start_child(tmp_path, str(program), LIBRARY, env=environment)
    output, errors = child.communicate(timeout=300)
    assert child.returncode == 0, errors[-3000:]
    assert "GPU ops agree with those of the processor" in output
