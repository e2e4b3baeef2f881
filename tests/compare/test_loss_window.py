# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import math

import pytest

from tfx_largeout.compare.supervisor import LossWindow


def test_mean_over_several_runs_of_the_running_mean():
    window = LossWindow()
    window.begin_run()
    for running_mean in (4.0, 3.0):  # losses 4, 2
        window.add_step(running_mean)
    window.begin_run()
    window.add_step(9.0)  # loss 9
    assert window.mean == pytest.approx((4 + 2 + 9) / 3)


def test_restart_forgets():
    window = LossWindow()
    window.add_step(4.0)
    window.restart()
    assert math.isnan(window.mean)
    window.add_step(1.0)
    assert window.mean == 1.0
