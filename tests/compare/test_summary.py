# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import dataclasses
import json

import pytest
from compare.points import make_result

from tfx_largeout.compare.results import CurvePoint, HeadResult, summarize

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


def test_time_to_a_share_of_the_best_of_all_rows():
    peer = make_result("tf_idf_neighbors", [(0, 2, 0.35)])
    full, fast, neighbors = summarize([FULL, FAST, peer])
    assert (full.seconds_to_50, full.seconds_to_90) == (pytest.approx(30), pytest.approx(54))
    assert (fast.seconds_to_50, fast.seconds_to_90) == (pytest.approx(20), None)
    assert (neighbors.seconds_to_50, neighbors.seconds_to_90) == (2, None)


@pytest.mark.parametrize("status", ["failed", "interrupted"])
def test_nothing_is_as_fast_as_an_unfinished_full_softmax(status):
    full = make_result("full_softmax", [(0, 0, 0.0), (1, 60, 0.4)], status=status)
    assert [row.speed_up for row in summarize([full, FAST])] == [None, None]
    assert summarize([FAST])[0].speed_up is None


def test_a_share_of_nothing_is_never_reached():
    (row,) = summarize([make_result("tf_nce", [(0, 0, 0.0), (1, 60, 0.0)])])
    assert row.seconds_to_50 is None


def test_a_head_that_never_started():
    row = summarize([make_result("tf_nce", [], status="failed", error="no memory")])[0]
    assert (row.status, row.error, row.steps) == ("failed", "no memory", 0)
    assert row.ms_per_step is None and row.precision_at_1 is None


def test_several_seeds_are_one_row_with_mean_and_spread():
    """One of three has failed: it counts only for the status."""
    curves = [[(0, 0, 0.0), (1, 10, 0.2)], [(0, 0, 0.0), (1, 20, 0.4)]]
    runs = [dataclasses.replace(make_result("a", c), seed=i) for i, c in enumerate(curves)]
    failed = make_result("a", [(0, 0, 0.0)], status="failed", error="no")
    (row,) = summarize([*runs, failed])
    assert (row.seeds, row.status, row.error) == (3, "failed", "no")
    assert row.precision_at_1 == pytest.approx(0.3)
    assert row.precision_at_1_spread == pytest.approx(0.1 * 2**0.5)
    assert row.exact_loss_spread == pytest.approx(0.1 * 2**0.5)
    assert (row.seconds, row.steps) == (15, 100)
    # Half of 0.3 is reached after 7.5 s of 10, and after 7.5 s of 20.
    assert row.seconds_to_50 == pytest.approx(7.5)
    assert row.seconds_to_90 is None  # by one alone


def test_a_head_with_neighbors_has_a_row_more():
    alone = HeadResult("a", {}, "done", steps=30, steps_per_epoch=10, seconds=3.0)
    alone.curve = [CurvePoint(30, 3.0, 3.0, 1.0, 0.4, 0.3, 0.2, 0.1, 5.0)]
    alone.with_neighbors = CurvePoint(0, 0.0, 4.5, None, 0.5, 0.35, 0.25)
    assert HeadResult.from_json(json.loads(json.dumps(dataclasses.asdict(alone)))) == alone
    first, second = summarize([alone])
    assert (first.head, first.steps, first.seconds, first.exact_loss) == ("a", 30, 3.0, 5.0)
    assert (second.head, second.steps, second.seconds) == ("a+neighbors", 0, 4.5)
    assert (second.precision_at_1, second.exact_loss, second.ms_per_step) == (0.5, None, None)
