# SPDX-License-Identifier: Apache-2.0
"""TrainingClock: the seconds that count."""

from __future__ import annotations

import time
from collections.abc import Callable


class TrainingClock:
    """Counts the wall-clock time of training steps, without pauses and without compilation.

    A step's time runs from the end of the step before it, or from `resume`, to its own end, and so
    includes the wait for data. The first step traces and compiles the graph: it is charged with the
    time of the second instead of its own. So `seconds` is 0 until the second step has ended. Where
    several steps are one execution, the same holds of executions.

    Args:
        timer: Returns the time in seconds. Default `time.perf_counter`.

    Attributes:
        steps: Steps so far.
        seconds: Seconds of training so far.
    """

    def __init__(self, timer: Callable[[], float] = time.perf_counter) -> None:
        self.steps = 0
        self.seconds = 0.0
        self._timer = timer
        self._since = 0.0
        self._first_is_charged = False

    def end_step(self, steps: int = 1) -> None:
        """Tells that a step has just ended, or several in one execution; the next begins."""
        now = self._timer()
        if self.steps:
            seconds = now - self._since
            self.seconds += seconds
            if not self._first_is_charged:
                self.seconds += seconds * self.steps / steps
                self._first_is_charged = True
        self.steps += steps
        self._since = now

    def resume(self) -> None:
        """Forgets the time since the end of the last step."""
        self._since = self._timer()
