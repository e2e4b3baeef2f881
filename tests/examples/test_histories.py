# SPDX-License-Identifier: Apache-2.0
"""The examples' reader of what users did, its parts, and its ranking, against plain Python."""

from __future__ import annotations

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
    assert "3 users, 6 items, 9 actions; 1 users of fewer than 3" in capsys.readouterr().out
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


def ranked(scores, before, item):
    """The classes, best first, without what came before, the item itself aside; no class 0."""
    left = [c for c in range(1, len(scores)) if c not in before or c == item]
    return sorted(left, key=lambda c: (-scores[c], c))


def random_ranking(seed):
    """Scores of which some are alike, histories of 0 to 5 of 12 classes, and what came next."""
    rng = np.random.default_rng(seed)
    table = rng.integers(0, 6, (50, 13)) + rng.random((50, 13), "float32") * (seed % 2)
    before = [rng.integers(1, 13, rng.integers(6)) for _ in table]
    return table, before, rng.integers(1, 13, len(table))


def score_by_history(table, before):
    """Histories are handed over in another order: each is found by what is in it."""
    rows = {tuple(row[row > 0]): scores for row, scores in zip(before, table, strict=True)}
    return lambda seen: np.array([rows[tuple(row[row > 0])] for row in seen])


@pytest.mark.parametrize(("batch_size", "seed"), [(7, 0), (512, 1)])
def test_ranking_by_its_definition(batch_size, seed):
    """With an even seed many scores are alike."""
    table, before, items = random_ranking(seed)
    _, first = np.unique([",".join(map(str, row)) for row in before], return_index=True)
    table, before, items = table[first], [before[i] for i in first], items[first]
    counts = np.arange(13)
    order = [ranked(*one) for one in zip(table, before, items, strict=True)]
    ranks = np.array([row.index(item) for row, item in zip(order, items, strict=True)])
    scores_of = score_by_history(table, before)
    found = histories.evaluate(scores_of, before, items, counts, k=3, batch_size=batch_size)
    for k in (5, 10, 20):
        assert found[f"HIT@{k}"] == pytest.approx(np.mean(ranks < k))
        gains = [1 / np.log2(rank + 2) if rank < k else 0 for rank in ranks]
        assert found[f"NDCG@{k}"] == pytest.approx(np.mean(gains))
    assert found["MRR"] == pytest.approx(np.mean(1 / (ranks + 1)))
    if seed % 2:  # else it is open which of those alike are recommended
        best = [
            [c for c in row if c not in had][:3] for row, had in zip(order, before, strict=True)
        ]
        best = np.concatenate(best)
        assert found["coverage@3"] == np.unique(best).size / 12
        assert found["popularity@3"] == pytest.approx(best.mean())
