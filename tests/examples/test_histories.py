# SPDX-License-Identifier: Apache-2.0
"""The examples' reader of what users did, and its parts."""

from __future__ import annotations

import gzip
import importlib.util
import lzma
from pathlib import Path

import numpy as np
import pytest

FILE = Path(__file__).parents[2] / "examples" / "histories.py"
spec = importlib.util.spec_from_file_location("histories", FILE)
histories = importlib.util.module_from_spec(spec)
spec.loader.exec_module(histories)

SEQUENCES = "3 7 8 9 4\n1 9 7 2\n8 5 7\n"
ACTIONS = "3 7\n3 8\n3 9\n3 4\n1 9\n1 7\n1 2\n8 5\n8 7\n"
USERS = {3: [7, 8, 9, 4], 1: [9, 7, 2], 8: [5, 7]}


def written(folder, text, name="data.txt"):
    (folder / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    return folder / name


@pytest.mark.parametrize(
    "text",
    [
        SEQUENCES,
        ACTIONS,
        "\ufeff# user, items\r\n\r\n" + SEQUENCES.replace("\n", "\r\n").replace(" ", ","),
        ACTIONS.replace(" ", "\t").rstrip(),
    ],
    ids=["sequences", "actions", "commas", "tabs"],
)
def test_both_formats_give_the_same(tmp_path, text):
    assert histories.read(written(tmp_path, text)) == USERS
    assert histories.read(written(tmp_path, lzma.compress(text.encode()), "d.xz")) == USERS


def test_the_parts_and_the_numbering_of_classes(tmp_path, capsys):
    written(tmp_path, SEQUENCES)
    written(tmp_path, "Source: a shop", "SOURCE.txt")
    data = histories.load(tmp_path)
    assert (
        "3 users, 6 items, 9 actions; 1 users with fewer than 3 actions" in capsys.readouterr().out
    )
    # Trained on: 7 8 (user 3), 9 (user 1), 5 7 (user 8, too short to be split). Then 2 and 4.
    assert data.ids.tolist() == [0, 7, 5, 8, 9, 2, 4]
    assert data.counts.tolist() == [0, 2, 1, 1, 1, 0, 0]
    assert [[data.ids[c] for c in part] for part in data.train] == [[7, 8], [9], [5, 7]]
    for part, before, items in (
        ("validation", [[7, 8], [9]], [9, 7]),
        ("test", [[7, 8, 9], [9, 7]], [4, 2]),
    ):
        had, targets, numbers = data.held_out(part)
        assert [[data.ids[c] for c in row] for row in had] == before
        assert data.ids[targets].tolist() == items
        assert data.users[numbers].tolist() == [3, 1]
    assert data.whole(8).tolist() == [5, 7]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"data.txt: must have a line of a user and an item at least; got none"),
        ("\n# nothing\n", "must have a line of a user"),
        ("1 2 3 4\n2 3 0 4\n", "line 2: ids must be integers of at least 1; got '0'"),
        ("1 2 3 4\n2 3 -1 4\n", "line 2: ids must be integers of at least 1; got '-1'"),
        ("1 2 3 4\n2 3 x 4\n", "line 2: ids must be integers of at least 1; got 'x'"),
        ("1 2 3 4\n2 3 1.5 4\n", "line 2: ids must be .* got '1.5'"),
        ("1 99999999999999999999\n", "line 1: ids must be .* got '9999"),
        ("1 " + 5000 * "9", "line 1: ids must be .* got '"),
        ("1 2 3 4\n2\n", r"line 2: a user must come with items; got \[2\]"),
        ("1 2\n2 3\n1 4\n", "line 3: the actions of a user must stand together, .* user 1 comes"),
        ("1 2 3 4\n1 5 6 7\n", "line 2: a user must have one line, as line 1 has .* user 1 has"),
        ("1 2\n1 3\n2 3\n2 4\n", "a user must have 3 items at least; got none that has"),
        (b"\xff\xfe\x00", "must be text, plain or compressed"),
    ],
)
def test_what_breaks_a_rule_is_named(tmp_path, text, message):
    written(tmp_path, text)
    with pytest.raises(SystemExit, match=message):
        histories.load(tmp_path)


def test_a_folder_has_one_file(tmp_path):
    with pytest.raises(SystemExit, match="must have one file of actions; got none"):
        histories.load(tmp_path)
    written(tmp_path, ACTIONS, "a.txt"), written(tmp_path, ACTIONS, "b.txt")
    with pytest.raises(SystemExit, match=r"must have one file of actions; got a\.txt, b\.txt"):
        histories.load(tmp_path)
    with pytest.raises(SystemExit, match="must be a file or a folder; got one that is not there"):
        histories.load(tmp_path / "c.txt")
    broken = written(tmp_path, lzma.compress(b"1 2 3 4")[:-9], "d.xz")
    with pytest.raises(SystemExit, match=r"d\.xz: must be text, plain or compressed as its name"):
        histories.load(broken)
    broken = written(tmp_path, gzip.compress(b"1 2 3 4")[:10] + b"\xff" * 20, "e.gz")
    with pytest.raises(SystemExit, match=r"e\.gz: must be text, plain or compressed as its name"):
        histories.load(broken)


def test_batches_of_like_length_are_bounded(monkeypatch):
    monkeypatch.setattr(histories, "MOST_PADDED", 12)
    rows = [np.zeros(n, int) for n in (3, 0, 40, 3, 4, 1, 2, 3)]
    batches = [[len(rows[i]) for i in batch] for batch in histories.by_length(rows, 4)]
    assert batches == [[40], [4, 3, 3], [3, 2, 1, 0]]
    assert sorted(np.concatenate(list(histories.by_length(rows, 3)))) == list(range(8))
