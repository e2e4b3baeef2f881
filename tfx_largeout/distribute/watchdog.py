# SPDX-License-Identifier: Apache-2.0
"""A time limit for a call that never returns to Python."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator

# It ends by itself when the call returns, or when the process that it watches ends.
_WATCH = """
import os, select, signal, sys
process, seconds, message = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3]
if not select.select([0], [], [], seconds)[0]:
    os.write(2, (message + "\\n").encode())
    os.kill(process, signal.SIGKILL)
"""


@contextlib.contextmanager
def time_limit(seconds: float, message: str) -> Iterator[None]:
    """Ends this process with a message if the body takes longer.

    TensorFlow waits for other workers with the interpreter's lock held and signals blocked: no
    thread and no signal handler of this process would run. So a small process of its own watches.

    Args:
        seconds: The limit.
        message: For standard error.
    """
    command = [sys.executable, "-I", "-S", "-c", _WATCH, str(os.getpid()), str(seconds), message]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as watch:
        try:
            yield
        finally:
            assert watch.stdin is not None
            watch.stdin.close()
