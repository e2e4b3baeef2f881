# SPDX-License-Identifier: Apache-2.0
"""Predictions in files: the best classes of each example, as text or as a CSR matrix."""

from __future__ import annotations

import bz2
import contextlib
import gzip
import lzma
import os
from typing import Any

import numpy as np

from tfx_largeout.arguments import integer_argument
from tfx_largeout.datasets.csr_format import write_npz
from tfx_largeout.datasets.readers import open_part
from tfx_largeout.datasets.sparse_rows import SparseRows
from tfx_largeout.datasets.xc_format import MAX_IDS
from tfx_largeout.written_whole import written_whole

_OPEN: dict[str, Any] = {".gz": gzip.open, ".xz": lzma.open, ".bz2": bz2.open}
_ROWS = 1 << 14


def write_predictions(path: str | os.PathLike[str], scores: Any, ids: Any, num_labels: int) -> None:
    """Writes the result of `top_k_model(model, k).predict(x)` to a file, for other tools.

    A path that ends in `.npz` becomes a CSR matrix `[N, num_labels]` of scores, as
    `scipy.sparse.save_npz` writes it; any other a text file in the format of `read_xc` for labels:
    `N L`, and `id:score id:score ...` in each further line, in the order of `ids`. It is compressed
    if it ends in `.gz`, `.xz` or `.bz2`.

    Cost: O(N k); text is written block by block.

    Args:
        path: The file; an existing one is replaced.
        scores: `[N, k]` real numbers, kept as float32.
        ids: `[N, k]` integers: classes, distinct in each row, or -1 for none.
        num_labels: Number of classes L.

    Raises:
        ValueError: Shapes or dtypes are wrong, an id is out of range or repeated in a row, or a
            score is not finite in float32. Nothing is written then.
        OSError: The file can't be written. An older file is unchanged.
    """
    num_labels = integer_argument("num_labels", num_labels, 1, MAX_IDS)
    scores, ids = np.asarray(scores), np.asarray(ids)
    if scores.ndim != 2 or scores.shape != ids.shape:
        raise ValueError(
            f"scores and ids must have the same shape [N, k]; got {scores.shape} and {ids.shape}"
        )
    for name, array, kinds in (("ids", ids, "iu"), ("scores", scores, "iuf")):
        if array.dtype.kind not in kinds:
            what = "integers" if name == "ids" else "real numbers"
            raise ValueError(f"{name} must be {what}; got dtype {array.dtype}")
    with np.errstate(over="ignore"):
        scores = scores.astype(np.float32)
    rows = _checked(scores, ids, num_labels)
    path = os.fspath(path)
    if path.endswith(".npz"):
        ordered = rows.in_order(num_labels)
        assert isinstance(ordered, SparseRows) and ordered.values is not None
        splits = np.concatenate([[0], np.cumsum(ordered.lengths)])
        with written_whole(path) as unfinished:
            write_npz(unfinished, splits, ordered.ids, ordered.values, num_labels)
        return
    opened = _OPEN.get(os.path.splitext(path)[1], open)
    with written_whole(path) as unfinished, opened(unfinished, "wt", encoding="ascii") as file:
        file.write(f"{len(ids)} {num_labels}\n")
        for start in range(0, len(ids), _ROWS):
            pairs = zip(
                ids[start : start + _ROWS].tolist(),
                scores[start : start + _ROWS].astype("U"),
                strict=True,
            )
            file.writelines(
                " ".join(f"{id}:{score}" for id, score in zip(*row, strict=True) if id >= 0) + "\n"
                for row in pairs
            )


def _checked(scores: np.ndarray, ids: np.ndarray, num_labels: int) -> SparseRows:
    there = ids != -1

    def refuse(wrong: np.ndarray, rule: str, array: np.ndarray) -> None:
        if wrong.any():
            row, place = np.argwhere(wrong)[0]
            raise ValueError(f"{rule}; got {array[row, place]} in row {row}")

    refuse(
        there & ((ids < 0) | (ids >= num_labels)), f"ids must be -1 or in [0, {num_labels})", ids
    )
    refuse(there & ~np.isfinite(scores), "scores must be finite in float32", scores)
    rows = SparseRows(there.sum(axis=1), ids[there].astype(np.int64), scores[there])
    twice = rows.in_order(num_labels)
    if isinstance(twice, int):
        raise ValueError(f"ids must not occur twice in a row; got {ids[twice]} in row {twice}")
    return rows


def read_predictions(path: str | os.PathLike[str]) -> tuple[np.ndarray, np.ndarray]:
    """Reads a file of `write_predictions`, or of another tool in one of its formats.

    Cost: O(file size) time; the result twice in memory.

    Args:
        path: A text file, plain or compressed, or a CSR matrix in a `.npz` file.

    Returns:
        `(scores, ids)`, float32 and int64, both `[N, k]` by falling score, ties by lower id; k is
        the largest number per example; other examples are padded with -inf and -1.

    Raises:
        ValueError: The file is malformed; the message begins as in `read_xc`.
        FileNotFoundError: The file does not exist.
    """
    with contextlib.ExitStack() as stack:
        part = open_part(stack, os.fspath(path), "label", "finite")
        blocks = [rows for _, rows in part.blocks]
    lengths, ids, values = (
        np.concatenate([np.zeros(0, dtype), *(rows[i] for rows in blocks)])
        for i, dtype in enumerate((np.int64, np.int64, np.float32))
    )
    row_of = np.repeat(np.arange(len(lengths)), lengths)
    order = np.lexsort((ids, -values, row_of))
    places = np.arange(len(ids)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    shape = len(lengths), int(lengths.max(initial=0))
    all_scores, all_ids = np.full(shape, -np.inf, np.float32), np.full(shape, -1, np.int64)
    all_scores[row_of, places], all_ids[row_of, places] = values[order], ids[order]
    return all_scores, all_ids
