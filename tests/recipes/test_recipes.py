# SPDX-License-Identifier: Apache-2.0
"""How CONTRIBUTING.md says that one adds to the package: carried out on a copy, with its tests."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LIBRARY = "tfx_largeout/ops/_tfx_largeout"
# The largest number of files, and the names of tests then.
RECIPES = {
    "a_loss": (3, "squared_hinge"),
    "a_sampler": (4, "geometric"),
    "a_head": (6, "soft_capped"),
    "an_op": (12, "row_norms or test_refusals or test_fuzz"),
}


def files_of(recipe):
    diff = (ROOT / "tests" / "recipes" / f"{recipe}.diff").read_text()
    return re.findall(r"^diff --git a/(\S+)", diff, re.MULTILINE)


def run(folder, *command):
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


@pytest.fixture
def copy(tmp_path):
    """The files of the checkout, with its library."""
    names = run(ROOT, "git", "ls-files", "--cached", "--others", "--exclude-standard").split("\n")
    names += [f"{LIBRARY}.so", f"{LIBRARY}.json"]
    for name in filter(None, names):
        if (ROOT / name).is_file():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, tmp_path / name)
    return tmp_path


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_touches_few_files_and_its_page_names_them(recipe):
    files = files_of(recipe)
    assert len(files) <= RECIPES[recipe][0]
    text = (ROOT / "CONTRIBUTING.md").read_text()
    row = next(line for line in text.splitlines() if f"tests/recipes/{recipe}.diff" in line)
    assert f"{len(files)} files" in row


@pytest.mark.thorough
@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_works(recipe, copy):
    run(copy, "git", "apply", f"tests/recipes/{recipe}.diff")
    if recipe == "an_op":
        build = ["cmake", "-S", "custom_ops", "-B", "build", "-DTFX_BUILD_TESTS=ON"]
        build += ["-DTFX_CUDA=on_cpu", f"-DPython3_EXECUTABLE={sys.executable}"]
        run(copy, *build, f"-DTFX_OUTPUT_DIRECTORY={copy / 'tfx_largeout' / 'ops'}")
        targets = ("_tfx_largeout", "_tfx_largeout_gpu", "row_norms_test", "row_norms_gpu_test")
        run(copy, "cmake", "--build", "build", "--parallel", "2", "--target", *targets)
        run(copy, "ctest", "--test-dir", "build", "-R", "row_norms", "--no-tests=error")
    tests = ["tests/conformance", "tests/losses", "tests/samplers", "tests/ops", "tests/fuzz"]
    tests += ["tests/test_registered_names.py", "-k", RECIPES[recipe][1]]
    printed = run(copy, sys.executable, "-m", "pytest", "-q", "-n", "2", *tests)
    assert int(re.search(r"(\d+) passed", printed)[1]) >= 3
