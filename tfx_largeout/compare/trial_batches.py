# SPDX-License-Identifier: Apache-2.0
"""TrialBatches: the same batches for each trial, and rows that no trial trains on."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from tfx_largeout.arguments import integer_argument
from tfx_largeout.callbacks.row_sample import (
    RowSample,
    common_length,
    in_batches,
    leaves_of,
    map_leaves,
    rows_of,
)

_KERAS_BATCH = 32
_HELD_OUT = 5  # at most one of this many rows or batches
_MOST_ROWS = 200_000  # kept for training
_ROWS_TO_COUNT = 20_000


class TrialBatches:
    """Splits data, in memory, into held-out rows and training batches.

    From arrays, held-out rows are chosen at random among rows with a label, and each epoch has
    another order. From batches, the first ones are held out; the following ones are stored when
    first read, up to a bound, and are repeated in each epoch.

    Args:
        asked_by: The name of the caller, for error messages.
        data: As for `choose_settings`.
        validation: None, or the rows to hold out.
        rows: The number of rows to hold out.
        batch_size: The batch size of arrays, or None.
        seed: The seed of all choices.

    Attributes:
        held_out: The held-out rows.

    Raises:
        TypeError: `data` or `validation` has another type.
        ValueError: There are too few rows, or `batch_size` is given with batches.
    """

    def __init__(
        self,
        asked_by: str,
        data: Any,
        validation: Any,
        rows: int,
        batch_size: int | None,
        seed: int,
    ) -> None:
        if batch_size is not None:
            batch_size = integer_argument("batch_size", batch_size, at_least=1)
        self._kept: list[Any] = []
        held_out = None if validation is None else RowSample(asked_by, validation, rows, seed)
        if isinstance(data, (tuple, list)):
            size = batch_size or _KERAS_BATCH
            found = _of_arrays(asked_by, data, held_out, rows, size, seed)
        elif batch_size is None:
            found = _of_batches(asked_by, data, held_out, rows, seed)
        else:
            raise ValueError(
                f"batch_size must be None where data come in batches; got {batch_size}"
            )
        self.held_out, self._more = found
        if next(self.training(), None) is None:
            raise ValueError("data must have batches beside the rows held out; got none")

    def training(self) -> Iterator[Any]:
        """Yields training batches, always the same ones, infinitely."""
        for place in itertools.count():
            if place == len(self._kept):
                batch = next(self._more, None)
                if batch is None:
                    break
                self._kept.append(map_leaves(_tensor, batch))
            yield self._kept[place]
        while self._kept:
            yield from self._kept

    def label_counts(self, num_classes: int) -> np.ndarray | None:
        """Returns how often each class is a label in the first batches; None: several outputs."""
        counts, rows = np.zeros(num_classes, np.int64), 0
        for number, (_, y, *_) in enumerate(self.training()):
            leaves = leaves_of(y)
            if len(leaves) != 1 or number >= len(self._kept) or rows >= _ROWS_TO_COUNT:
                break
            rows += common_length("label_counts", y)
            ids = _ids(leaves[0])
            counts += np.bincount(ids[(ids >= 0) & (ids < num_classes)], minlength=num_classes)
        return counts if counts.any() else None


def _of_arrays(
    asked_by: str, data: Any, held_out: RowSample | None, rows: int, batch_size: int, seed: int
) -> tuple[RowSample, Iterator[Any]]:
    """Returns held-out rows, given or chosen, and batches of the rest."""
    (whole,) = in_batches(asked_by, data)
    length = common_length(asked_by, whole)
    order = np.random.default_rng(seed).permutation(length)
    number = 0
    if held_out is None:
        number = min(rows, length // _HELD_OUT)
        if number < 2:
            raise ValueError(
                f"data must have at least {2 * _HELD_OUT} rows to hold some out, or validation "
                f"be given; got {length}"
            )
        held_out = RowSample(asked_by, _taken(whole, order[:number]), rows, seed)
    return held_out, _epochs(whole, order[number:], batch_size, seed)


def _epochs(whole: Any, places: np.ndarray, size: int, seed: int) -> Iterator[Any]:
    size = min(size, len(places))
    random, kept = np.random.default_rng([seed, 1]), 0
    while size:
        order = random.permutation(places)
        for start in range(0, len(order) - size + 1, size):
            yield _taken(whole, order[start : start + size])
            kept += size
            if kept >= _MOST_ROWS:
                return


def _of_batches(
    asked_by: str, data: Any, held_out: RowSample | None, rows: int, seed: int
) -> tuple[RowSample, Iterator[Any]]:
    """Returns held-out rows, given or the first batches, and the other batches."""
    batches = iter(in_batches(asked_by, data, endless=True))
    if held_out is None:
        number = int(data.cardinality()) if isinstance(data, tf.data.Dataset) else 0
        most = max(1, number // _HELD_OUT) if number > 0 else rows
        first: list[Any] = []
        while len(first) < most and sum(common_length(asked_by, b) for b in first) < rows:
            batch = next(batches, None)
            if batch is None:
                break
            first.append(batch)
        if not first:
            raise ValueError("data must have at least one batch; got none")
        held_out = RowSample(asked_by, _Again(first), rows, seed)
    return held_out, _bounded(asked_by, batches)


def _bounded(asked_by: str, batches: Iterator[Any]) -> Iterator[Any]:
    kept = 0
    for batch in batches:
        yield batch
        kept += common_length(asked_by, batch)
        if kept >= _MOST_ROWS:
            return


class _Again:
    """Batches that can be read repeatedly from the first."""

    def __init__(self, batches: list[Any]) -> None:
        self._batches = batches

    def __iter__(self) -> Iterator[Any]:
        return iter(self._batches)


def _taken(whole: Any, places: np.ndarray) -> Any:
    return map_leaves(lambda leaf: rows_of(leaf, np.sort(places)), whole)


def _tensor(leaf: Any) -> Any:
    composite = isinstance(leaf, (tf.SparseTensor, tf.RaggedTensor))
    return leaf if composite else tf.convert_to_tensor(leaf)


def _ids(leaf: Any) -> np.ndarray:
    if isinstance(leaf, tf.SparseTensor):
        is_there = tf.cast(leaf.values, tf.bool)  # for targets, where ids are columns
        columns = tf.boolean_mask(leaf.indices[:, 1], is_there)
        ids = leaf.values if leaf.dtype.is_integer else columns
    else:
        ids = leaf.flat_values if isinstance(leaf, tf.RaggedTensor) else leaf
    return np.asarray(ids).ravel().astype(np.int64)
