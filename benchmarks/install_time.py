# SPDX-License-Identifier: Apache-2.0
"""The time of an installation: `python benchmarks/install_time.py [build|install]`.

`build` is the C++ build alone, in the active environment; `install` is `pip install .` in a fresh
virtual environment. Each is timed on a copy of the sources, first with empty caches, then with the
caches of the first run: pip's downloads and this package's built libraries. The rows of a part
replace earlier rows.
"""

from __future__ import annotations

import csv
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import harness

ROOT = Path(__file__).parents[1]
RESULTS = harness.RESULTS / "install_time.csv"
NOT_SOURCES = shutil.ignore_patterns("build", ".git", "*.so", "*.egg-info", "__pycache__")


def timed(command: list[str], folder: Path, caches: Path) -> dict[str, float]:
    """Runs a command; returns its wall-clock seconds and its processes' seconds in user code."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    start = time.perf_counter()
    environment = {**os.environ, "XDG_CACHE_HOME": str(caches)}
    environment.pop("PYTHONPATH", None)
    subprocess.run(command, cwd=folder, env=environment, check=True)
    seconds = time.perf_counter() - start
    user = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before
    return {"seconds": round(seconds, 1), "user_seconds": round(user, 1)}


def measure(part: str) -> list[dict[str, Any]]:
    """Returns the rows of a part: with empty caches, and with the caches of the first run."""
    rows = []
    with tempfile.TemporaryDirectory() as work:
        for caches in ("empty", "filled"):
            clone, environment = Path(work, caches), Path(work, caches + "_environment")
            shutil.copytree(ROOT, clone, ignore=NOT_SOURCES)
            command = [sys.executable, "setup.py", "build_ext"]
            if part == "install":
                subprocess.run([sys.executable, "-m", "venv", environment], check=True)
                command = [str(environment / "bin" / "python"), "-m", "pip", "install", "."]
            times = timed(command, clone, Path(work, "caches"))
            rows.append({"step": part, "caches": caches, **times, **harness.machine()})
            print(rows[-1], flush=True)
    return rows


def main() -> None:
    """Measures the parts that are named, or both."""
    parts = sys.argv[1:] or ["build", "install"]
    rows: list[dict[str, Any]] = []
    if RESULTS.exists():
        with RESULTS.open(newline="") as file:
            rows = [row for row in csv.DictReader(file) if row["step"] not in parts]
    for part in parts:
        rows += measure(part)
    harness.write_csv(RESULTS, rows)


if __name__ == "__main__":
    main()
