# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest
from compare.points import make_result

from tfx_largeout.compare.summary import summarize

FULL = make_result("full_softmax", [(0, 0, 0.0), (0.25, 30, 0.2), (0.5, 60, 0.4)])
FAST = make_result("tf_nce", [(0, 0, 0.0), (5, 30, 0.3), (10, 60, 0.3)])


def test_figures_of_a_row():
    full, fast = summarize([FULL, FAST])
    assert (full.steps, full.epochs, full.seconds) == (50, 0.5, 60)
    assert full.ms_per_step == pytest.approx(1200)
    assert full.seconds_per_epoch == pytest.approx(120)
    assert full.epoch_extrapolated and not fast.epoch_extrapolated
    assert full.speed_up == pytest.approx(1)
    assert fast.speed_up == pytest.approx(120 / 6)
    assert (fast.precision_at_1, fast.precision_at_3, fast.precision_at_5) == (0.3, 0.15, 0.075)
    assert fast.exact_loss == pytest.approx(11.7)
    assert fast.peak_memory_mib == 100


def test_time_to_a_share_of_the_full_softmax():
    full, fast = summarize([FULL, FAST])
    assert full.seconds_to_50 == pytest.approx(30)
    assert full.seconds_to_90 == pytest.approx(54)
    assert full.epochs_to_90 == pytest.approx(0.45)
    assert fast.seconds_to_50 == pytest.approx(20)
    assert fast.epochs_to_50 == pytest.approx(20 / 6)
    assert fast.seconds_to_90 is None and fast.epochs_to_90 is None


@pytest.mark.parametrize("status", ["failed", "interrupted"])
def test_nothing_is_relative_to_an_unfinished_full_softmax(status):
    full = make_result("full_softmax", [(0, 0, 0.0), (1, 60, 0.4)], status=status)
    for row in summarize([full, FAST]):
        assert row.speed_up is None and row.seconds_to_50 is None
    assert summarize([FAST])[0].speed_up is None


def test_a_share_of_nothing_is_never_reached():
    full = make_result("full_softmax", [(0, 0, 0.0), (1, 60, 0.0)])
    fast = summarize([full, FAST])[1]
    assert fast.speed_up == pytest.approx(10)
    assert fast.seconds_to_50 is None


def test_a_head_that_never_started():
    row = summarize([make_result("tf_nce", [], status="failed", error="no memory")])[0]
    assert (row.status, row.error, row.steps) == ("failed", "no memory", 0)
    assert row.ms_per_step is None and row.precision_at_1 is None
