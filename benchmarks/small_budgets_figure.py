# SPDX-License-Identifier: Apache-2.0
"""Draws the measurements of small_budgets.py: a map of P@1 by sampler and S, and P@1 by seconds.

For each data set of the CSV whose biases began at log class frequencies: on the left P@1 after the
last epoch, a row a sampler (shared by the batch or own to each example), a column an S; on the
right P@1 after each epoch against the seconds of the processor until then, for the S of each row
that is best in the end. Of a text it is the perplexity, for which less is better.

    python benchmarks/small_budgets_figure.py
"""

from __future__ import annotations

import csv
from collections import defaultdict
from pathlib import Path

import harness
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.ticker import FuncFormatter, LogLocator

FIGURE = Path(__file__).parents[1] / "docs" / "figures" / "small_budgets.png"

# Curves of one sampler: {S: [(seconds, P@1 in percent or -perplexity) after each epoch]}.
Curves = dict[int, list[tuple[float, float]]]

WITHOUT_SIGN = FuncFormatter(lambda value, _: f"{abs(value):g}")


def read(path: Path) -> dict[str, dict[str, Curves]]:
    """Returns by data set and sampler, the best first, the curves of the chosen loss and rate."""
    runs: dict[tuple[str, ...], list[tuple[float, float]]] = defaultdict(list)
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            if row["bias"] == "log_frequency":
                name = row["sampler"] + ("" if row["sharing"] == "all" else f", {row['sharing']}")
                key = (row["data"], name, row["loss"], row["rate"], row["s"])
                perplexity = row["perplexity"]
                value = -float(perplexity) if perplexity else 100 * float(row["precision_at_1"])
                runs[key].append((float(row["seconds"]), value))
    chosen: dict[str, dict[str, Curves]] = defaultdict(dict)
    for data, name in sorted({key[:2] for key in runs}):
        settings: dict[tuple[str, ...], Curves] = defaultdict(dict)
        for key, curve in runs.items():
            if key[:2] == (data, name):
                settings[key[2:4]][int(key[4])] = curve
        # The setting that won at the S of tuning alone has the other S.
        chosen[data][name] = max(settings.values(), key=lambda of: (len(of), _last(of)))
    return {data: dict(sorted(of_set.items(), key=_badness)) for data, of_set in chosen.items()}


def _badness(item: tuple[str, Curves]) -> float:
    return -_last(item[1])


def _last(curves: Curves) -> float:
    return max(curve[-1][1] for curve in curves.values())


def _measure(of_set: dict[str, Curves]) -> str:
    return "perplexity" if _last(next(iter(of_set.values()))) < 0 else "P@1 in percent"


def draw_map(axes: plt.Axes, of_set: dict[str, Curves]) -> None:
    """Draws the results after the last epoch."""
    sizes = sorted({s for curves in of_set.values() for s in curves if s})
    table = np.full((len(of_set), len(sizes)), np.nan)
    for row, curves in enumerate(of_set.values()):
        for s, curve in curves.items():
            table[row, [sizes.index(s)] if s else slice(None)] = curve[-1][1]
    image = axes.imshow(table, aspect="auto", cmap="viridis")
    middle = (np.nanmin(table) + np.nanmax(table)) / 2
    for (row, column), value in np.ndenumerate(table):
        if np.isfinite(value):
            color = "white" if value < middle else "black"
            text = f"{value:.1f}" if value >= 0 else f"{-value:.0f}"
            axes.text(column, row, text, ha="center", va="center", color=color)
    axes.set_xticks(range(len(sizes)), [f"{s:,}" for s in sizes])
    axes.set_yticks(range(len(of_set)), list(of_set))
    axes.set_xlabel("S")
    bar = axes.figure.colorbar(image, ax=axes, label=_measure(of_set))
    bar.ax.yaxis.set_major_formatter(WITHOUT_SIGN)


def draw_curves(axes: plt.Axes, of_set: dict[str, Curves]) -> None:
    """Draws it by seconds, for the best S of each sampler."""
    for number, (name, curves) in enumerate(of_set.items()):
        s, curve = max(curves.items(), key=lambda item: item[1][-1][1])
        seconds, values = zip(*curve, strict=True)
        label = f"{name}, S = {s:,}" if s else name
        axes.plot(seconds, values, "o-" if number < 10 else "s--", label=label)
    worst = min(curve[-1][1] for curves in of_set.values() for curve in curves.values())
    if worst < 0:
        axes.set_ylim(bottom=1.1 * worst)  # early perplexities would flatten all the others
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter("")
    axes.set_xlabel("seconds of one core, training and evaluation")
    axes.yaxis.set_major_formatter(WITHOUT_SIGN)
    axes.set_ylabel(_measure(of_set))
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small", loc="center left", bbox_to_anchor=(1, 0.5))


def main() -> None:
    chosen = read(harness.RESULTS / "small_budgets.csv")
    figure, rows = plt.subplots(
        len(chosen), 2, figsize=(16, 5 * len(chosen)), squeeze=False, layout="constrained"
    )
    for axes, (data, of_set) in zip(rows, chosen.items(), strict=True):
        axes[0].set_title(f"{data}: {_measure(of_set)} after the last epoch")
        axes[1].set_title(f"{data}: by seconds")
        draw_map(axes[0], of_set)
        draw_curves(axes[1], of_set)
    figure.savefig(FIGURE, dpi=80)


if __name__ == "__main__":
    main()
