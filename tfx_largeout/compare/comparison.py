# SPDX-License-Identifier: Apache-2.0
"""Comparison: what came out, and the files that have it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tfx_largeout.compare.output_folder import OutputFolder
from tfx_largeout.compare.page import write_page
from tfx_largeout.compare.plots import HOW_TO_GET_PLOTS, plot_curves
from tfx_largeout.compare.report import write_report
from tfx_largeout.compare.results import CurvePoint, HeadResult
from tfx_largeout.compare.root_message import root_message
from tfx_largeout.compare.summary import SummaryRow, by_head, summarize
from tfx_largeout.compare.table import format_table, html_table


class Comparison:
    """The results of all that was compared. `str` gives the table, a notebook shows it as HTML.

    Args:
        name: What the data are called.
        files: Where the results go.
        configuration: All that they depend on; for `results.json` and the page.
        results: Those of an earlier run, to which others are added.
        notes: Sentences below the table.

    Attributes:
        results: A `HeadResult` for each head or model and seed.
    """

    def __init__(
        self,
        name: str,
        files: OutputFolder,
        configuration: Mapping[str, Any],
        results: Sequence[HeadResult] = (),
        notes: Sequence[str] = (),
    ) -> None:
        self.results = list(results)
        self._name = name
        self._files = files
        self._configuration = configuration
        self._notes = notes

    @property
    def rows(self) -> list[SummaryRow]:
        """The figures of the table, one row a head or model: `row.precision_at_1` and others."""
        return summarize(self.results)

    @property
    def curves(self) -> dict[str, list[list[CurvePoint]]]:
        """The evaluations of each head or model: a list of points for each of its seeds."""
        return {head: [run.curve for run in runs] for head, runs in by_head(self.results).items()}

    @property
    def folder(self) -> Path:
        """Where the files are."""
        return self._files.path

    @property
    def title(self) -> str:
        """The data, in a line."""
        classes = (r.data["classes"] for r in self.results if "classes" in r.data)
        sizes = (r.batch_size for r in self.results if r.batch_size)
        parts = [f"{n:,} classes" for n in [*classes][:1]] + [f"batches of {n}" for n in sizes][:1]
        return f"{self._name}: {', '.join(parts)}" if parts else self._name

    @property
    def notes(self) -> list[str]:
        """What else a reader must know."""
        notes = [note for result in self.results for note in result.notes]
        return list(dict.fromkeys([*notes, *self._notes]))

    def write(self) -> None:
        """Writes CSV and JSON."""
        write_report(self._files, self._configuration, self.results)

    def draw(self) -> str:
        """Writes the picture and the page; returns why there is no picture, if there is none."""
        problem = ""
        self._files.plot_png.unlink(missing_ok=True)  # that of an earlier state
        try:
            plot_curves(self.results, self.title, self._files.plot_png)
        except ImportError:
            problem = HOW_TO_GET_PLOTS
        except Exception as error:  # whatever matplotlib stumbles over, the results are there
            problem = f"No plot: {root_message(str(error))}"
        write_page(
            self._files.page_html,
            self.title,
            self.results,
            self.notes,
            self._configuration,
            self._files.plot_png,
        )
        return problem

    def __str__(self) -> str:
        return format_table(self.rows, self.notes)

    def _repr_html_(self) -> str:
        return html_table(self.rows, self.notes)
