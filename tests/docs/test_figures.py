# SPDX-License-Identifier: Apache-2.0
"""Figures of README and docs match the CSV files."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SPEC = importlib.util.spec_from_file_location("figures", BENCHMARKS / "figures.py")
figures = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(figures)
fill = figures.fill


@pytest.fixture
def results(tmp_path):
    (tmp_path / "a.csv").write_text(
        "run,head,p,s\n1,dense,0.4321,2\n1,sampled,0.5,\n2,dense,0.6,9\n"
    )
    return tmp_path


def test_figures_are_those_of_the_files():
    check = [sys.executable, str(BENCHMARKS / "figures.py"), "--check"]
    process = subprocess.run(check, capture_output=True, text=True)
    assert process.returncode == 0, process.stdout


@pytest.mark.all_cases
@pytest.mark.parametrize(
    ("rule", "text"),
    [
        ("a.csv; run=1, head=dense; p; percent.1", "43.2"),
        ("a.csv; run=2; s; .0", "9"),
        ("a.csv; head=dense; max s; .1", "9.0"),
        ("a.csv; head=dense; sum s; .0", "11"),
        ("a.csv; head=dense; median p; .2", "0.52"),
        ("a.csv; run=1, head=sampled; s; .1", "-"),
        ("a.csv; run=2; head; text", "dense"),
        ("a.csv; run=1, head=dense or run=1, head=sampled; max p; e.0", "5e-01"),
        ("a.csv; head=last; max p; .1", "0.6"),
        ("a.csv; run=1|2, head=dense; max s; .0", "9"),
    ],
)
def test_a_figure_is_filled_in(results, rule, text):
    assert fill(f"of <!--= {rule} -->1<!--/--> s", results) == (
        f"of <!--= {rule} -->{text}<!--/--> s"
    )


def test_a_table_is_filled_in(results):
    marker = "<!--table= a.csv; run=1; head: head text | P@1, %: p percent.0 -->\n"
    filled = fill(f"{marker}| old |\n<!--/table-->\n", results)
    rows = "| head | P@1, % |\n|---|---|\n| dense | 43 |\n| sampled | 50 |\n"
    assert filled == f"{marker}\n{rows}\n<!--/table-->\n"


def test_a_pivot_is_filled_in(results):
    marker = "<!--pivot= a.csv; ; run: run text; head; p percent.0 / s .1 -->\n"
    rows = (
        "| run | dense | sampled |\n|---|---|---|\n| 1 | 43 / 2.0 | 50 / - |\n| 2 | 60 / 9.0 |  |\n"
    )
    filled = f"{marker}\n{rows}\n<!--/pivot-->\n"
    assert fill(f"{marker}| old |\n<!--/pivot-->\n", results) == filled
    counted = fill("<!--pivot= a.csv; ; run: run text; head; count -->\n<!--/pivot-->", results)
    assert "| 1 | 1 | 1 |\n| 2 | 1 |  |\n" in counted


@pytest.mark.all_cases
@pytest.mark.parametrize(
    "text",
    [
        "<!--= a.csv; run=2; s; .0 -->9",
        "<!-- = a.csv; run=2; s; .0 -->9<!--/-->",
        "<!--= a.csv; run=2; s; .0 -->9<!-- / -->",
        "<!--figure= a.csv; run=2; s; .0 -->9<!--/-->",
        "<!--table= a.csv; run=2; s: s .0 -->\n9",
    ],
)
def test_a_marker_that_is_not_whole_is_an_error(results, text):
    with pytest.raises(figures.MarkerError, match="1 markers begin"):
        fill(text, results)


@pytest.mark.all_cases
@pytest.mark.parametrize(
    ("rule", "reason"),
    [
        ("a.csv; head=dense; p; .1", "2 rows are such"),
        ("a.csv; head=other; p; .1", "no row is such"),
        ("a.csv; run=2; q; .1", "'q'"),
        ("a.csv; run=2; p", "4 parts"),
        ("a.csv; run=2; p; 1", "a format must be"),
        ("b.csv; run=2; p; .1", "No such file"),
    ],
)
def test_a_marker_that_cannot_be_followed(results, rule, reason):
    with pytest.raises(figures.MarkerError, match=f"line 2: .*{reason}"):
        fill(f"\n<!--= {rule} -->1<!--/-->", results)
