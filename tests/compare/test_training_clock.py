# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

from tfx_largeout.compare.timed_fit import TrainingClock


class FakeTimer:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def test_the_first_step_is_charged_with_the_time_of_the_second():
    timer = FakeTimer()
    clock = TrainingClock(timer)
    timer.now += 50  # compilation
    clock.end_step()
    assert (clock.steps, clock.seconds) == (1, 0)
    for seconds in (1.0, 3.0):
        timer.now += seconds
        clock.end_step()
    assert clock.steps == 3
    assert clock.seconds == pytest.approx(1.0 + 1.0 + 3.0)


def test_a_pause_does_not_count():
    timer = FakeTimer()
    clock = TrainingClock(timer)
    clock.end_step()
    timer.now += 1
    clock.end_step()
    timer.now += 30  # evaluation
    clock.resume()
    timer.now += 1
    clock.end_step()
    assert clock.seconds == pytest.approx(3.0)


def test_several_steps_may_be_one_execution():
    timer = FakeTimer()
    clock = TrainingClock(timer)
    for steps, seconds in ((4, 50.0), (2, 1.0), (4, 3.0)):
        timer.now += seconds
        clock.end_step(steps)
    assert clock.steps == 10
    assert clock.seconds == pytest.approx(2.0 + 1.0 + 3.0)
