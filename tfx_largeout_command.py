# SPDX-License-Identifier: Apache-2.0
"""The command `tfx-largeout`, without TensorFlow's lines at its start.

TensorFlow prints them at import, for any TF_CPP_MIN_LOG_LEVEL, and the package imports
TensorFlow: so this module is outside of the package. If you set the variable, all lines are shown.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator

_LEVEL = "TF_CPP_MIN_LOG_LEVEL"


def main() -> int:
    """Runs `tfx-largeout`; returns the exit code: see `tfx_largeout.compare.cli`."""
    with contextlib.nullcontext() if _LEVEL in os.environ else _errors_held_back():
        from tfx_largeout.compare.cli import main
    if "launch" not in sys.argv[1:2]:  # scripts that it starts say for themselves
        os.environ.setdefault(_LEVEL, "2")
    return main()


@contextlib.contextmanager
def _errors_held_back() -> Iterator[None]:
    """Shows what goes to standard error, from C++ too, only if there is an exception."""
    with tempfile.TemporaryFile() as held:
        own = os.dup(2)
        os.dup2(held.fileno(), 2)
        try:
            yield
        except BaseException:
            held.seek(0)
            os.write(own, held.read())
            raise
        finally:
            os.dup2(own, 2)
            os.close(own)


if __name__ == "__main__":
    sys.exit(main())
