# SPDX-License-Identifier: Apache-2.0
"""P@1, P@5 and the exact loss against seconds and against examples, as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tfx_largeout.compare.results import HeadResult, by_head

HOW_TO_GET_PLOTS = (
    "No plots: matplotlib is not installed; get it with `pip install matplotlib`, or in a clone "
    '`pip install ".[plot]"`.'
)
# Okabe and Ito's colours, distinguishable with colour blindness, without yellow.
_COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
_DASHES = ("-", "--", ":")
_ROWS = (
    ("precision_at_1", "P@1, %", 100),
    ("precision_at_5", "P@5, %", 100),
    ("exact_loss", "exact loss, nats", 1),
)


def plot_curves(results: Sequence[HeadResult], title: str, path: Path) -> None:
    """Draws P@1, P@5 and the exact loss, each against seconds of training and examples seen.

    Both axes are logarithmic, so the untrained model is not shown. For several seeds the mean is
    shown, with a band from minimum to maximum. Results without a trained point are left out; if
    none are left, there is no picture.

    Raises:
        ImportError: matplotlib is not installed.
    """
    from cycler import cycler
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator, NullFormatter

    heads = by_head(result for result in results if len(result.curve) > 1)
    if not heads:
        return
    figure = Figure(figsize=(11, 11), dpi=110, layout="constrained")
    figure.suptitle(title, parse_math=False)
    panels = figure.subplots(3, 2, sharex="col", sharey="row")
    for row, (field, name, scale) in zip(panels, _ROWS, strict=True):
        row[0].set_ylabel(f"{name}, test set")
        for panel, against in zip(row, ("seconds", "examples"), strict=True):
            panel.set_prop_cycle(cycler(linestyle=_DASHES) * cycler(color=_COLORS))
            for head, runs in heads.items():
                _draw(panel, head, runs, against, field, scale)
            # Without a time where each head took one step alone.
            if any((line.get_xdata() > 0).any() for line in panel.get_lines()):
                panel.set_xscale("log", nonpositive="mask")
                panel.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
                panel.xaxis.set_major_formatter("{x:g}")
                panel.xaxis.set_minor_formatter(NullFormatter())
            panel.grid(alpha=0.3)
            panel.spines[["top", "right"]].set_visible(False)
            if scale == 100:
                panel.set_ylim(bottom=0)
    panels[-1][0].set_xlabel("seconds of training")
    panels[-1][1].set_xlabel("training examples seen")
    handles, labels = panels[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False)
    figure.savefig(path)


def _draw(
    panel: Any, head: str, runs: Sequence[HeadResult], against: str, field: str, scale: float
) -> None:
    length = min(len(run.curve) for run in runs)  # two evaluations may coincide
    curves = [
        (run, [run.curve[round(i)] for i in np.linspace(1, len(run.curve) - 1, length - 1)])
        for run in runs
    ]
    places, values = (
        np.array([[_value(run, point, name) for point in points] for run, points in curves])
        for name in (against, field)
    )
    place, values = places.mean(axis=0), scale * values
    style = {"marker": "o", "markersize": 3.5, "linewidth": 1.8}
    (line,) = panel.plot(place, values.mean(axis=0), label=head, **style)
    if len(runs) > 1:
        band = {"color": line.get_color(), "alpha": 0.2, "linewidth": 0}
        panel.fill_between(place, values.min(axis=0), values.max(axis=0), **band)


def _value(run: HeadResult, point: Any, name: str) -> float:
    value = point.step * run.batch_size if name == "examples" else getattr(point, name)
    return float("nan") if value is None else float(value)
