# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import dataclasses

from compare.points import make_result

from tfx_largeout.compare.results import summarize
from tfx_largeout.compare.table import format_table, html_table

FULL = make_result("full_softmax", [(0, 0, 0.0), (0.5, 60, 0.1234)])
SAMPLED = make_result("tf_sampled_softmax", [(0, 0, 0.0), (50, 60, 0.05)])
FAILED = make_result("tf_nce", [], status="failed", error="ValueError: too many")


def table_of(*results):
    return format_table(summarize(results))


def test_cells():
    lines = table_of(FULL, SAMPLED, FAILED).splitlines()
    full, sampled, failed = (line.split() for line in lines[3:6])
    assert " ".join(full) == (
        "full_softmax 50 1200 ~120 1.00 12.34 6.17 3.08 1.54 11.877 30.0 54.0 60.0 100"
    )
    assert sampled[:5] == ["tf_sampled_softmax", "5000", "12.0", "1.20", "100"]
    assert sampled[-4:] == ["-", "-", "60.0", "100"]
    assert failed[:-1] == ["tf_nce"] + ["-"] * 12


def test_columns_are_aligned_and_narrow():
    big = make_result("tf_sampled_softmax", [(0, 0, 0.0), (4000, 6000, 1.0)])
    big.wall_seconds = 7000.0
    lines = table_of(make_result("full_softmax", [(0, 0, 0.0), (5, 6000, 1.0)]), big).splitlines()
    assert len({len(line) for line in lines[2:5]}) == 1
    assert max(map(len, lines[:5])) <= 120


def test_notes():
    text = table_of(FULL, FAILED)
    assert "~ extrapolated" in text
    assert "tf_nce failed: ValueError: too many" in text
    assert "~" not in table_of(SAMPLED)
    interrupted = make_result("tf_nce", [(0, 0, 0.0), (1, 7, 0.1)], status="interrupted")
    assert "tf_nce was interrupted after 7.0 s of training" in table_of(interrupted)


def test_columns_that_say_nothing_are_left_out():
    assert "speed" in table_of(FULL) and "speed" not in table_of(SAMPLED)


def test_of_several_seeds_there_is_a_spread():
    again = dataclasses.replace(make_result("full_softmax", [(0, 0, 0.0), (1, 60, 0.1)]), seed=1)
    text = table_of(FULL, again)
    assert " 11.17±1.65 " in text and "Means over 2 seeds, ± standard deviation." in text


def test_html_has_the_same_cells_and_no_markup_of_names():
    result = make_result("<b>", [(0, 0, 0.0), (1, 60, 0.1)], status="failed", error="a & b")
    text = html_table(summarize([result]), ["<i>"])
    assert "<td>&lt;b&gt;</td>" in text and "<td>10.00</td>" in text
    assert "a &amp; b" in text and "<li>&lt;i&gt;</li>" in text
