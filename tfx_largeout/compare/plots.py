# SPDX-License-Identifier: Apache-2.0
"""P@1 against seconds and against epochs, as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tfx_largeout.compare.results import HeadResult

HOW_TO_GET_PLOTS = (
    "No plots: matplotlib is not installed; get it with `pip install 'tfx_largeout[plot]'`."
)
# Okabe and Ito's colours, which colour-blind people can tell apart, without the yellow.
_COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
_DASHES = ("-", "--", ":")
_WIDE_SPREAD = 20


def plot_precision(results: Sequence[HeadResult], title: str, path: Path) -> None:
    """Draws two panels: P@1 against seconds of training, and against epochs.

    The axis of epochs is logarithmic where one head made far more epochs than another.

    Args:
        results: Heads without a trained point are left out; without any, there is no picture.
        title: The title of the picture.
        path: A `.png` file.

    Raises:
        ImportError: matplotlib is not installed.
    """
    from matplotlib.figure import Figure

    results = [result for result in results if len(result.curve) > 1]
    if not results:
        return
    figure = Figure(figsize=(11, 4.6), dpi=130, layout="constrained")
    figure.suptitle(title, parse_math=False)
    panels = figure.subplots(1, 2, sharey=True)
    for panel, name in zip(panels, ("seconds", "epoch"), strict=True):
        _draw(panel, results, name)
    panels[0].set_xlabel("seconds of training")
    panels[0].set_xlim(left=0)
    panels[0].set_ylabel("P@1 on the test set, %")
    last_epochs = [result.curve[-1].epoch for result in results]
    panels[1].set_xlabel("epochs")
    if max(last_epochs) > _WIDE_SPREAD * min(last_epochs):
        panels[1].set_xscale("log", nonpositive="mask")  # leaves out the untrained model
        panels[1].xaxis.set_major_formatter("{x:g}")
        panels[1].set_xlabel("epochs (logarithmic)")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False)
    figure.savefig(path)


def _draw(panel: Any, results: Sequence[HeadResult], name: str) -> None:
    for index, result in enumerate(results):
        panel.plot(
            [getattr(point, name) for point in result.curve],
            [100 * point.precision_at_1 for point in result.curve],
            color=_COLORS[index % len(_COLORS)],
            linestyle=_DASHES[index // len(_COLORS) % len(_DASHES)],
            marker="o",
            markersize=3.5,
            linewidth=1.8,
            label=result.head,
        )
    panel.set_ylim(bottom=0)
    panel.grid(alpha=0.3)
    panel.spines[["top", "right"]].set_visible(False)
