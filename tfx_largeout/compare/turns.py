# SPDX-License-Identifier: Apache-2.0
"""One after the other is trained; what is there is reported after each."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import NamedTuple

from tfx_largeout.compare.comparison import Comparison
from tfx_largeout.compare.output_folder import OutputFolder
from tfx_largeout.compare.progress import Progress
from tfx_largeout.compare.results import HeadResult
from tfx_largeout.compare.settings import TrainingSettings

OnChange = Callable[[HeadResult, float | None], None]


class Turn(NamedTuple):
    """A training to come.

    Attributes:
        name: What progress calls it; also of its log and its TensorBoard run.
        train: `train(on_change)` trains, calls `on_change` after each event with the result so far
            and the training loss, if the event has one, and returns the result.
    """

    name: str
    train: Callable[[OnChange], HeadResult]


def run_name(head: str, seed: int, seeds: int) -> str:
    """Returns the name of the turn of a head, if there are several seeds of each."""
    return head if seeds == 1 else f"{head}-seed{seed}"


def take_turns(
    turns: Sequence[Turn],
    comparison: Comparison,
    files: OutputFolder,
    settings: TrainingSettings,
) -> list[str]:
    """Trains, with progress on standard error, and prints the table on standard output.

    CSV and JSON are written anew after each turn, so that nothing is lost whatever happens.

    Args:
        turns: What to train, in this order. An interrupted one is the last.
        comparison: Gets the results.
        files: Where they go. Those of an earlier run are deleted once a training has begun.
        settings: How long a turn is.

    Returns:
        The names of the turns that were not taken.
    """
    progress = Progress(sys.stderr, settings, [turn.name for turn in turns])
    begun = False

    def begin_once() -> None:
        nonlocal begun
        if not begun:
            begun = True
            files.begin_run()
            comparison.write()

    left = [turn.name for turn in turns]
    for name, train in turns:

        def on_change(result: HeadResult, loss: float | None) -> None:
            if result.stage == "training":
                begin_once()  # the data are good: now an earlier run's results may go
            progress.update(result, loss)

        progress.begin(name)
        result = train(on_change)
        begin_once()
        progress.end(result)
        comparison.results.append(result)
        comparison.write()
        left.pop(0)
        if result.status == "interrupted":
            break
    print("", comparison, "", sep="\n", flush=True)
    problem = comparison.draw()
    say(problem)
    say(f"Results: {files.path}   (tensorboard --logdir {files.tensorboard})")
    say(f"As one page: {files.page_html}")
    return left


def say(text: str) -> None:
    """Tells the user something on standard error."""
    if text:
        print(text, file=sys.stderr, flush=True)
