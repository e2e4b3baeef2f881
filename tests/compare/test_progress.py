# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import io

import pytest

from tfx_largeout.compare.job import Progress
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


def lines_of(stream, settings, *events):
    progress = Progress(stream, settings, ["tf_nce"])
    progress.begin("tf_nce")
    for steps, seconds in events:
        result = HeadResult("tf_nce", {}, steps_per_epoch=10, steps=steps, seconds=seconds)
        progress.update(result, None)
    progress.end(result)
    return stream.getvalue()


@pytest.mark.parametrize(
    ("settings", "event", "bar"),
    [
        (TrainingSettings(budget=60), (0, 0.0), "...................."),
        (TrainingSettings(budget=60), (7, 15.0), "#####..............."),
        (TrainingSettings(budget=60), (90, 60.4), "####################"),
        (TrainingSettings(budget=None, epochs=2.0), (10, 500.0), "##########.........."),
    ],
)
def test_a_terminal_shows_a_bar_of_what_is_done(settings, event, bar):
    assert f"\rtf_nce  [{bar}]  " in lines_of(Terminal(), settings, event)


@pytest.mark.parametrize(
    ("settings", "event", "left"),
    [
        (TrainingSettings(budget=60), (7, 15.0), " 15.0/60 s, 45 s left  "),
        (TrainingSettings(budget=None, epochs=2.0), (5, 10.0), " 10.0 s  epoch 0.50/2, 30 s left"),
    ],
)
def test_a_terminal_shows_the_seconds_that_are_left(settings, event, left):
    assert left in lines_of(Terminal(), settings, event)


def test_elsewhere_there_is_no_bar():
    assert "[" not in lines_of(io.StringIO(), TrainingSettings(), (7, 15.0))
