# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from compare.points import make_result

from tfx_largeout.compare.plots import plot_curves

figure = pytest.importorskip("matplotlib.figure")


def drawn(monkeypatch, results):
    """Returns the figure in place of the file."""
    kept = []
    monkeypatch.setattr(figure.Figure, "savefig", lambda self, path: kept.append(self))
    plot_curves(results, "title", "nowhere.png")
    return kept


def test_panels_have_the_mean_of_the_seeds_and_a_band(monkeypatch):
    """One seed has a point less; both end at the last."""
    curves = [
        [(0, 0, 0.0), (1, 2, 0.2), (2, 4, 0.3), (3, 6, 0.4)],
        [(0, 0, 0.0), (1, 4, 0.4), (3, 8, 0.6)],
    ]
    runs = [dataclasses.replace(make_result("a", curve), batch_size=8) for curve in curves]
    (result,) = drawn(monkeypatch, [*runs, make_result("peer", [(0, 1, 0.1)])])
    seconds, examples = result.axes[0], result.axes[1]
    (line,) = seconds.get_lines()
    np.testing.assert_allclose(line.get_xdata(), [3, 7])
    np.testing.assert_allclose(line.get_ydata(), [30, 50])
    np.testing.assert_allclose(examples.get_lines()[0].get_xdata(), [8 * 100, 8 * 300])
    (band,) = seconds.collections
    assert band.get_paths()[0].get_extents().bounds == pytest.approx((3, 20, 4, 40))
    assert [axes.get_ylabel()[:4] for axes in result.axes[::2]] == ["P@1,", "P@5,", "exac"]
    assert all(axes.get_xscale() == "log" for axes in result.axes)


def test_without_times_their_axis_is_linear(monkeypatch):
    """One step is not timed; a peer that is timed has no curve."""
    head = dataclasses.replace(make_result("a", [(0, 0, 0.0), (1, 0, 0.5)]), batch_size=8)
    (result,) = drawn(monkeypatch, [head, make_result("peer", [(1, 3, 0.1)])])
    assert [axes.get_xscale() for axes in result.axes] == 3 * ["linear", "log"]


def test_without_a_trained_point_there_is_no_picture(monkeypatch):
    assert drawn(monkeypatch, [make_result("a", [(0, 0, 0.0)])]) == []
