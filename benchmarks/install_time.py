# SPDX-License-Identifier: Apache-2.0
"""How long an installation takes, and its parts: writes results/install_time.csv.

    python benchmarks/install_time.py

pip has its packages in its own cache, as after a first download; `cold` and `cached` say whether
the C++ library was in the cache of builds.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path

import harness

ROOT = Path(__file__).resolve().parents[1]


def run(row: dict[str, str], command: list[str], variables: dict[str, str]) -> dict[str, object]:
    """Runs a command; returns its row."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(command, check=True, capture_output=True, cwd=ROOT, env=os.environ | variables)
    seconds, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    done = {**row, "seconds": round(seconds, 1), "cpu_seconds": round(cpu, 1)}
    print(done, flush=True)
    return {**done, **harness.machine()}


def main() -> None:
    rows = []
    pip_cache = subprocess.check_output([sys.executable, "-m", "pip", "cache", "dir"], text=True)
    with tempfile.TemporaryDirectory() as folder:
        variables = {"XDG_CACHE_HOME": f"{folder}/cache", "PIP_CACHE_DIR": pip_cache.strip()}
        for gpu in ("off", "auto"):
            for state in ("cold", "cached"):
                target = f"{folder}/{gpu}-{state}"
                command = [sys.executable, "setup.py", "build_ext"]
                command += ["--build-lib", f"{target}/lib", "--build-temp", f"{target}/temp"]
                row = {"part": "C++ library", "gpu_kernels": gpu, "library": state}
                rows.append(run(row, command, {**variables, "TFX_CUDA": gpu}))
        for state in ("cold", "cached"):
            variables["XDG_CACHE_HOME"] = f"{folder}/cache-of-pip"
            for tensorflow in ("absent", "installed"):
                if tensorflow == "absent":
                    venv.create(f"{folder}/{state}", with_pip=True, clear=True)
                python = f"{folder}/{state}/bin/python"
                command = [python, "-m", "pip", "install", ".[plot]"]
                if tensorflow == "installed":
                    command += ["--force-reinstall", "--no-deps"]
                row = {"part": f"pip install, TensorFlow {tensorflow} before", "gpu_kernels": "off"}
                library = state if tensorflow == "absent" else "cached"
                rows.append(
                    run({**row, "library": library}, command, {**variables, "TFX_CUDA": "off"})
                )
    harness.write_csv(harness.RESULTS / "install_time.csv", rows)


if __name__ == "__main__":
    main()
