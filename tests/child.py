# SPDX-License-Identifier: Apache-2.0
"""Child processes of Python that import the package which is installed.

With `-c` and `-m` Python looks in the current folder first. Where that is a clone, it would find
the source tree, which has no shared library: so children never start there.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def start_child(folder: Path, *arguments: str, **options) -> subprocess.Popen[str]:
    """Starts Python with these arguments, in `folder`, with pipes for its output and errors."""
    return subprocess.Popen(
        [sys.executable, *arguments],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


def run_child(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs Python with these arguments, in `folder`, to its end."""
    process = start_child(folder, *arguments)
    output, errors = process.communicate()
    return subprocess.CompletedProcess(process.args, process.returncode, output, errors)


def run_program(folder: Path, program: str, *arguments: str) -> list[str]:
    """Runs a program, which must end well, and returns the words that it prints."""
    child = run_child(folder, "-c", program, *arguments)
    assert child.returncode == 0, child.stderr[-2000:]
    return child.stdout.split()
