# SPDX-License-Identifier: Apache-2.0
"""SparseRows: a block of rows of features or of labels, and the rules that all formats share."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

ARRAYS = {
    "feature_splits": np.int64,
    "feature_ids": np.int32,
    "feature_values": np.float32,
    "label_splits": np.int64,
    "label_ids": np.int64,
}
LABEL_VALUES = ("one", "positive")
VALUE_RULES = {
    "finite": "a finite float32 number",
    "one": "1, or 0 for no label (label_values='positive' takes all above 0)",
    "positive": "a finite float32 number",
}


class SparseRows(NamedTuple):
    """Rows with their entries; lengths, not splits, so that blocks can be joined."""

    lengths: np.ndarray
    ids: np.ndarray
    values: np.ndarray | None

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def rows_of_entries(self) -> np.ndarray:
        """The row of each entry."""
        return np.repeat(np.arange(len(self.lengths)), self.lengths)

    def where(self, kept: np.ndarray) -> SparseRows:
        """The rows for which `kept`, `[n]` bool, is True."""
        if kept.all():
            return self
        there = np.repeat(kept, self.lengths)
        values = None if self.values is None else self.values[there]
        return SparseRows(self.lengths[kept], self.ids[there], values)

    def as_labels(self) -> SparseRows:
        """The ids of the entries with a value above 0."""
        assert self.values is not None
        there = self.values > 0
        lengths = np.bincount(self.rows_of_entries[there], minlength=len(self.lengths))
        return SparseRows(lengths, self.ids[there].astype(np.int64), None)

    def in_order(self, width: int) -> SparseRows | int:
        """The rows with rising ids; or the number of a row with a repeated id."""
        keys = self.rows_of_entries * width + self.ids
        if np.all(keys[1:] > keys[:-1]):
            return self
        order = np.argsort(keys, kind="stable")
        keys = keys[order]
        twice = keys[1:] == keys[:-1]
        if twice.any():
            return int(keys[np.argmax(twice)] // width)
        values = None if self.values is None else self.values[order]
        return SparseRows(self.lengths, self.ids[order], values)


def wrong_values(values: np.ndarray, rule: str) -> np.ndarray:
    """Returns which values break one of `VALUE_RULES`."""
    return ~np.isfinite(values) if rule != "one" else (values != 0) & (values != 1)


class JoinedRows:
    """The arrays of `SparseExamples`, from blocks of rows; in memory twice at the end."""

    def __init__(self) -> None:
        self._arrays: dict[str, list[np.ndarray]] = {name: [] for name in ARRAYS}

    def append(self, kind: str, rows: SparseRows) -> None:
        """Appends rows of `kind`, features or labels."""
        self._arrays[f"{kind}_splits"].append(rows.lengths)
        self._arrays[f"{kind}_ids"].append(rows.ids)
        if rows.values is not None:
            self._arrays[f"{kind}_values"].append(rows.values)

    def arrays(self) -> dict[str, np.ndarray]:
        """Returns the arrays by name, and drops the blocks."""
        joined = {}
        for name, dtype in ARRAYS.items():
            array = np.concatenate([np.zeros(0, dtype), *self._arrays.pop(name)])
            is_splits = name.endswith("_splits")
            joined[name] = np.concatenate([[0], np.cumsum(array)]) if is_splits else array
        return joined
