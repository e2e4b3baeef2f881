# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import io

from tfx_largeout.compare.progress import Progress
from tfx_largeout.compare.results import HeadResult
from tfx_largeout.compare.settings import TrainingSettings


class Terminal(io.StringIO):
    def isatty(self):
        return True

    def fileno(self):
        raise OSError


def test_a_terminal_shows_what_is_read():
    terminal = Terminal()
    progress = Progress(terminal, TrainingSettings(), ["tf_nce"])
    progress.begin("tf_nce")
    progress.update(HeadResult("tf_nce", {}, stage="reading train.txt: 3 of 9 examples"), None)
    assert "\rtf_nce  reading train.txt: 3 of 9 examples" in terminal.getvalue()
