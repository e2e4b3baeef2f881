# SPDX-License-Identifier: Apache-2.0
"""Small valid calls on which an op and composed ops once disagreed."""

from __future__ import annotations

import numpy as np
import tensorflow as tf
from fuzz.calls import Call, Variable


def _of_index(numbers: list) -> Variable:
    return Variable(np.array(numbers).astype(np.uint32))  # -1 as 2^32 - 1


def _candidates(note: str, entries: list, starts: list, codes: list) -> Call:
    """Each example looks into its bucket of one table of four classes, and needs two."""
    inputs = {
        "entries": _of_index([entries]),
        "starts": _of_index([starts]),
        "codes": np.array([codes], np.int32)[..., np.newaxis],
        "order": np.zeros(1, np.int32),
        "rotations": np.zeros(1, np.int64),
        "first_class": np.int64(0),
        "budget": np.int64(2),
    }
    attributes = {"own": True, "gives_marks": True, "most_of_bucket": 9, "num_ranges": 1}
    return Call("TfxBucketCandidates", inputs, attributes, (note,))


def _update(note: str, entries: list) -> Call:
    """One of three classes has changed, in one table of two buckets."""
    inputs = {
        "entries": _of_index([entries]),
        "starts": _of_index([[0, 2, 3]]),
        "touched_at": _of_index([0, 0, 0]),
        "built_at": _of_index([0]),
        "kernel": Variable(np.array([[1, 2], [2, 1], [3, 1]], np.float32)),
        "bias": [],
        "elements": np.array([[0, 1]], np.int32),
        "planes": np.zeros((0, 0), np.float32),
        "touched": np.array([0]),
        "now": np.int32(1),
        "tables": np.array([0, 1]),
        "radii": np.zeros(0, np.float32),
    }
    attributes = {"num_tables": 1, "hashes_per_table": 1, "bins": 1, "dtype": tf.float32}
    return Call("TfxHashIndexUpdate", inputs, attributes, (note,))


def _codes(note: str, elements: np.ndarray) -> Call:
    """Two vectors are hashed by planes."""
    inputs = {
        "vectors": np.array([[1, -2], [-1, 3]], np.float32),
        "elements": elements,
        "planes": np.array([[1, 0], [0, 1]], np.float32),
    }
    attributes = {"num_tables": 1, "hashes_per_table": 2, "bins": 1}
    return Call("TfxHashCodes", inputs, attributes, (note,))


KEPT = [
    _codes("elements are empty, but have rows", np.zeros((1, 0), np.int32)),
    _codes("elements are empty, but have columns", np.zeros((0, 3), np.int32)),
    _candidates("a start is wrong behind what is read", [0, 1, 2, 3], [0, 3, 9], [0, 1]),
    _candidates("an entry is wrong behind what is read", [0, 1, -1, 3], [0, 3, 4], [0, 1]),
    _candidates("an entry is wrong that is read", [0, -1, 2, 3], [0, 3, 4], [0, 1]),
    _candidates("a code is too large behind what is read", [0, 1, 2, 3], [0, 3, 4], [0, 2]),
    _update("a class that stays is in two buckets", [1, 2, 1]),
    _update("a class is twice in its bucket", [1, 1, 0]),
    _update("the class that has changed is in two buckets", [0, 2, 0]),
]
