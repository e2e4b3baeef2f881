# SPDX-License-Identifier: Apache-2.0
"""Whether the library is built: the build step, where programs are as a test says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SETUP = Path(__file__).parents[2] / "setup.py"


@pytest.fixture
def build(tmp_path):
    """Runs the build step with only the given programs, by their exit statuses."""

    def run(programs=None, **variables):
        path = tmp_path / "bin"
        path.mkdir(exist_ok=True)
        for name, status in (programs or {}).items():
            (path / name).write_text(f"#!/bin/sh\nexit {status}\n")
            (path / name).chmod(0o755)
        kept = {k: v for k, v in os.environ.items() if k not in ("CXX", "TFX_LIBRARY")}
        return subprocess.run(
            [sys.executable, SETUP, "build_ext"]
            + ["--build-lib", tmp_path / "lib", "--build-temp", tmp_path / "temp"],
            cwd=SETUP.parent,
            env={**kept, "PATH": str(path), "XDG_CACHE_HOME": str(tmp_path), **variables},
            capture_output=True,
            text=True,
        )

    return run


@pytest.fixture
def ops(tmp_path):
    """The folder in which the build step leaves its files, with a library of an earlier build."""
    folder = tmp_path / "lib" / "tfx_largeout" / "ops"
    folder.mkdir(parents=True)
    (folder / "_tfx_largeout.so").write_bytes(b"old")
    return folder


@pytest.mark.parametrize("programs", [{}, {"cmake": 0, "ninja": 0}, {"c++": 1}])
def test_without_a_compiler_the_library_is_left_out_with_a_warning(build, ops, programs):
    result = build(programs)
    assert result.returncode == 0, result.stderr
    output = result.stdout + result.stderr
    assert output.count("installed without its library of custom ops: no C++ compiler") == 1
    assert [path.name for path in ops.iterdir()] == ["_tfx_largeout.json"]
    reason = json.loads((ops / "_tfx_largeout.json").read_text())["not_built"]
    assert "no C++ compiler was found" in reason


def test_left_out_where_that_is_asked_for(build, ops):
    result = build({"c++": 0}, TFX_LIBRARY="off")
    assert result.returncode == 0, result.stderr
    record = json.loads((ops / "_tfx_largeout.json").read_text())
    assert record == {"not_built": "TFX_LIBRARY was off"}


@pytest.mark.parametrize(
    ("programs", "variables", "error"),
    [
        ({"c++": 0, "ninja": 0}, {}, "cmake is needed to build"),
        ({"c++": 0, "cmake": 1, "ninja": 0}, {}, "returned non-zero exit status 1"),
        ({"cmake": 1, "ninja": 0}, {"CXX": "/nowhere/c++"}, "returned non-zero exit status 1"),
        ({"cmake": 1, "ninja": 0}, {"TFX_LIBRARY": "on"}, "returned non-zero exit status 1"),
        ({}, {"TFX_LIBRARY": "yes"}, "TFX_LIBRARY must be auto, on or off; got 'yes'"),
    ],
)
def test_what_is_an_error(build, ops, programs, variables, error):
    result = build(programs, **variables)
    assert result.returncode != 0
    assert error in result.stderr
    assert not (ops / "_tfx_largeout.json").exists()
