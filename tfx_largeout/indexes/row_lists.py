# SPDX-License-Identifier: Apache-2.0
"""Lists of similar rows of W, searched by inner products with h: an inverted file."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import tensorflow as tf

_MEAN_PROBED = 1 / 16  # default share of the lists
_ROOM = 1.25  # room of a list, relative to the mean number of classes
_LENGTHS = 0.99  # R is this quantile of the lengths of rows
_BLOCK_ELEMENTS = 2**22
_ROUNDS = 10  # of k-means
_SAMPLE = 64  # points per center
_DISTANCES = 2**24  # distances in memory: 64 MiB
_CHOICES = 16  # nearest centers tried for a point, before any list with room


class RowLists(NamedTuple):
    """Lists of rows around centers of k-means, as `InvertedFile` describes them.

    The largest inner product is the smallest distance once all rows have the same length:

        |(w, b, sqrt(R^2 - |w|^2 - b^2)) - (h, 1, 0)|^2 = R^2 + |h|^2 + 1 - 2 (w . h + b)

    Rows longer than R get 0 as the last coordinate: if R were the length of a single very long row,
    the last coordinate would dominate every point. Which product is the largest does not depend on
    the length of (h, 1), so a query is scaled to the length R. |c| counts as at most R, so that
    long rows, which often have the largest product, do not seem far away.
    """

    lists: np.ndarray
    """`[C]`: the list of each class."""
    order: np.ndarray
    """`[C]`: the classes, list after list; within one in order."""
    ranks: np.ndarray
    """`[C]`: the place of each of these in its list."""
    sizes: np.ndarray
    """`[num_lists]`: the number of classes, at most `length`."""
    length: int
    """How many classes a list has room for, 1.25 times their mean number."""
    centers: np.ndarray
    """`[num_lists, D + 1]`, without the last coordinate."""
    penalties: np.ndarray
    """`[num_lists]`, min(|c|, R)^2 / (2 R) of whole centers."""


def default_num_lists(num_classes: int) -> int:
    """Returns the default number of lists."""
    return round(math.sqrt(num_classes))


def default_num_probed(num_lists: int) -> int:
    """Returns the default number of lists that a query reads."""
    return math.ceil(num_lists * _MEAN_PROBED)


def rows_and_biases(kernel: tf.Variable, bias: tf.Tensor | tf.Variable | None) -> np.ndarray:
    """Returns (w, b, 0) of all rows, `[C, D + 2]` float32, with room for the last coordinate."""
    num_classes, width = kernel.shape
    points = np.zeros((num_classes, width + 2), np.float32)
    block = max(_BLOCK_ELEMENTS // max(width, 1), 1)
    for first in range(0, num_classes, block):
        with np.errstate(over="ignore"):  # float64 overflows to infinity
            points[first : first + block, :width] = kernel[first : first + block].numpy()
    if bias is not None:
        points[:, width] = bias.numpy()
    return points


def make_row_lists(points: np.ndarray, num_lists: int, seed: int) -> RowLists:
    """Returns lists of the rows of W.

    Cost: k-means over a sample of 64 `num_lists` rows, and O(C num_lists D).

    Args:
        points: The result of `rows_and_biases`, finite; its last coordinate is set.
        num_lists: At most C.
        seed: The same seed gives the same lists.
    """
    squares = np.einsum("cd,cd->c", points[:, :-1], points[:, :-1], dtype=np.float64)
    square = np.quantile(squares, _LENGTHS)
    points[:, -1] = np.sqrt(np.maximum(square - squares, 0))
    num_classes = len(points)
    length = min(math.ceil(_ROOM * num_classes / num_lists), num_classes)
    centers = _k_means(points, num_lists, seed)
    lists = _lists_of_points(points, centers, length)
    order = np.argsort(lists, kind="stable")
    sizes = np.bincount(lists, minlength=num_lists)
    ranks = np.arange(num_classes) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    squares_of_centers = np.minimum(np.einsum("cd,cd->c", centers, centers), square)
    penalties = squares_of_centers / (2 * max(np.sqrt(square), np.finfo(np.float32).tiny))
    penalties = penalties.astype(np.float32)
    return RowLists(lists, order, ranks, sizes, length, centers[:, :-1], penalties)


def _k_means(points: np.ndarray, num_centers: int, seed: int) -> np.ndarray:
    """Returns centers by ten Lloyd iterations over a sample of the points `[n, D]` float32.

    A center without points moves to a point that is far from its center.

    Cost: O(64 num_centers^2 D) per iteration.
    """
    random = np.random.default_rng(seed)
    count = min(len(points), _SAMPLE * num_centers)
    sample = points[np.sort(random.choice(len(points), count, replace=False))]
    centers = sample[random.choice(count, num_centers, replace=False)]
    for _ in range(_ROUNDS):
        nearest, distances = _nearest_centers(sample, centers, 1)
        own = nearest[:, 0]
        sizes = np.bincount(own, minlength=num_centers)
        order = np.argsort(own, kind="stable")
        starts = np.concatenate([[0], np.cumsum(sizes)])[:-1]
        there = sizes > 0
        centers[there] = np.add.reduceat(sample[order], starts[there]) / sizes[there, np.newaxis]
        centers[~there] = sample[np.argsort(-distances[:, 0], kind="stable")[: np.sum(~there)]]
    return centers


def _nearest_centers(
    points: np.ndarray, centers: np.ndarray, count: int
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the nearest centers of each point `[n, count]`, nearest first, and |c|^2 - 2 c.x."""
    squares = np.einsum("cd,cd->c", centers, centers)
    ids = np.empty((len(points), count), np.int32)
    distances = np.empty((len(points), count), np.float32)
    block = max(_DISTANCES // len(centers), 1)
    for first in range(0, len(points), block):
        place = slice(first, first + block)
        values = squares - 2 * (points[place] @ centers.T)
        if count == 1:
            best = values.argmin(axis=1)[:, np.newaxis]
        else:
            best = np.argpartition(values, count - 1, axis=1)[:, :count]
        found = np.take_along_axis(values, best, axis=1)
        order = np.argsort(found, axis=1, kind="stable")
        ids[place] = np.take_along_axis(best, order, axis=1)
        distances[place] = np.take_along_axis(found, order, axis=1)
    return ids, distances


def _lists_of_points(points: np.ndarray, centers: np.ndarray, length: int) -> np.ndarray:
    """Returns the list of each point, `[n]`: around its nearest center, unless that list is full.

    A list with `length` points is full, and keeps the nearest points; others go to their next
    nearest center.
    """
    count = min(_CHOICES, len(centers))
    choices, distances = _nearest_centers(points, centers, count)
    lists = np.full(len(points), -1, np.int32)
    room = np.full(len(centers), length)
    for choice in range(count):
        left = np.flatnonzero(lists < 0)
        wanted = choices[left, choice]
        order = np.lexsort((distances[left, choice], wanted))
        sizes = np.bincount(wanted, minlength=len(centers))
        starts = np.cumsum(sizes) - sizes
        rank = np.arange(len(left)) - starts[wanted[order]]
        taken = order[rank < room[wanted[order]]]
        lists[left[taken]] = wanted[taken]
        room -= np.bincount(wanted[taken], minlength=len(centers))
    left = np.flatnonzero(lists < 0)
    lists[left] = np.repeat(np.arange(len(centers)), room)[: len(left)]
    return lists
