# SPDX-License-Identifier: Apache-2.0
"""What users did, in order of time: files of it, and its three parts.

Two formats are read, plain or compressed (.xz, .gz, .bz2), fields parted by blanks, tabs or commas,
empty lines and lines that begin with # left out. Ids are integers of at least 1:

    user item item item ...    a line per user: the items in order of time
    user item                  a line per action: a user's actions together, in order of time

A file in which each line has two fields is of the second kind. The last item of each user is for
the test, the one before for validation, the rest for training. A user with fewer than three items
is used for training only. The catalogue is all items of the file; class 0 is none of them, the
others follow by falling frequency in training, ties by lower id.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import re
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np

OPENERS = {".xz": lzma.open, ".gz": gzip.open, ".bz2": bz2.open}
NO_DATA = re.compile(r"^(\.|readme|licen[cs]e|source)", re.IGNORECASE)
MOST_PADDED = 2**22  # places of a batch in which histories are padded
Rows = list[tuple[int, list[int]]]


def find_file(data: Path) -> Path:
    """Returns the file of actions: `data` itself, or the only one in this folder."""
    if not data.exists():
        raise SystemExit(f"{data}: DATA must be a file or a folder; got one that is not there")
    if data.is_file():
        return data
    files = [f for f in sorted(data.iterdir()) if f.is_file() and not NO_DATA.match(f.name)]
    if len(files) != 1:
        names = ", ".join(f.name for f in files) or "none"
        raise SystemExit(f"{data}: a folder must have one file of actions; got {names}")
    return files[0]


def lines_of(file: Path) -> Iterator[tuple[int, str]]:
    """Returns number and text of each line that is neither empty nor a comment."""
    try:
        with OPENERS.get(file.suffix, open)(file, "rt", encoding="utf-8-sig") as lines:
            for number, line in enumerate(lines, 1):
                text = line.strip()
                if text and not text.startswith("#"):
                    yield number, text
    except (OSError, EOFError, UnicodeDecodeError, lzma.LZMAError, zlib.error) as error:
        raise SystemExit(
            f"{file}: must be text, plain or compressed as its name says; {error}"
        ) from error


def read(file: Path) -> dict[int, list[int]]:
    """Returns the items of each user, by id, in order of time.

    Raises:
        SystemExit: A line breaks a rule; file, line and rule are named.
    """
    rows: Rows = []
    for number, line in lines_of(file):
        fields = line.replace(",", " ").split()
        rows.append((number, [id_of(field, file, number) for field in fields]))
    if not rows:
        raise SystemExit(f"{file}: must have a line of a user and an item at least; got none")
    for number, fields in rows:
        if len(fields) < 2:
            raise SystemExit(f"{file}, line {number}: a user must come with items; got {fields}")
    if all(len(fields) == 2 for _, fields in rows):
        return _of_actions(rows, file)
    longer = next(number for number, fields in rows if len(fields) > 2)
    users: dict[int, list[int]] = {}
    for number, (user, *items) in rows:
        if user in users:
            raise SystemExit(
                f"{file}, line {number}: a user must have one line, as line {longer} has more "
                f"fields than user and item; user {user} has two"
            )
        users[user] = items
    return users


def id_of(field: str, file: Path, number: int) -> int:
    """Returns the id that a field of this line is."""
    if not re.fullmatch("[0-9]{1,19}", field) or not 1 <= int(field) < 2**63:
        raise SystemExit(
            f"{file}, line {number}: ids must be integers of at least 1; got {field!r}"
        )
    return int(field)


def _of_actions(rows: Rows, file: Path) -> dict[int, list[int]]:
    users: dict[int, list[int]] = {}
    last = None
    for number, (user, item) in rows:
        if user != last and user in users:
            raise SystemExit(
                f"{file}, line {number}: the actions of a user must stand together, in order of "
                f"time; user {user} comes again"
            )
        users.setdefault(user, []).append(item)
        last = user
    return users


class Histories:
    """Users, their items as classes, and the parts: training, validation and test.

    Attributes:
        users: `[U]` ids of the users.
        ids: `[C]` ids of the items by class; 0 for class 0, which is no item.
        train: Of each user the classes to train on, an array.
        counts: `[C]` how often each class is in `train`.
    """

    def __init__(self, items: dict[int, list[int]]) -> None:
        self.users = np.array(list(items))
        self._items = [np.array(history) for history in items.values()]
        self._splits = np.array([len(h) >= 3 for h in self._items])
        train = [h[: len(h) - 2 * s] for h, s in zip(self._items, self._splits, strict=True)]
        ids, counts = np.unique(np.concatenate(train), return_counts=True)
        others = np.setdiff1d(np.concatenate(self._items), ids)  # never in training
        order = np.argsort(-counts, kind="stable")
        self.ids = np.concatenate([[0], ids[order], others])
        self.counts = np.concatenate([[0], counts[order], np.zeros(len(others), int)])
        by_id = np.argsort(self.ids)
        self._classes = lambda part: by_id[np.searchsorted(self.ids[by_id], part)]
        self.train = [self._classes(part) for part in train]

    @property
    def num_classes(self) -> int:
        return len(self.ids)

    def held_out(self, part: str) -> tuple[list[np.ndarray], np.ndarray, np.ndarray]:
        """Returns of `"validation"` or `"test"` what came before, the item, and the user's number.

        Of the users that are split; for the test, the item of validation came before, too.
        """
        last = {"validation": 2, "test": 1}[part]
        numbers = np.flatnonzero(self._splits)
        histories = [self._classes(self._items[i]) for i in numbers]
        before = [history[:-last] for history in histories]
        return before, np.array([history[-last] for history in histories]), numbers

    def whole(self, user: int) -> np.ndarray:
        """Returns the ids of all items of the user with this id, for a recommendation of more."""
        return self._items[np.flatnonzero(self.users == user)[0]]


def load(data: Path) -> Histories:
    """Reads a file, or the one in a folder, and says what is in it."""
    file = find_file(data)
    histories = Histories(read(file))
    actions = sum(map(len, histories._items))
    alone = len(histories.users) - int(histories._splits.sum())
    print(
        f"{file}: {len(histories.users):,} users, {histories.num_classes - 1:,} items, "
        f"{actions:,} actions; {alone:,} users with fewer than 3 actions, used for training only"
    )
    if not histories._splits.any():
        raise SystemExit(f"{file}: a user must have 3 items at least; got none that has")
    return histories


def padded(rows: list[np.ndarray], padding: int = 0) -> np.ndarray:
    """Returns `[n, longest]` int64, with padding behind; one column at least."""
    result = np.full((len(rows), max([1, *map(len, rows)])), padding, np.int64)
    for row, values in zip(result, rows, strict=True):
        row[: len(values)] = values
    return result


def by_length(rows: list[np.ndarray], batch_size: int) -> Iterator[np.ndarray]:
    """Returns numbers of rows, the longest first: batches of little padding, and bounded memory."""
    order = np.argsort([-len(row) for row in rows], kind="stable")
    start = 0
    while start < len(order):
        fit = MOST_PADDED // max(len(rows[order[start]]), 1)
        stop = start + min(max(fit, 1), batch_size)
        yield order[start:stop]
        start = stop
