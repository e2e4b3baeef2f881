# SPDX-License-Identifier: Apache-2.0
"""Lists of rows of W that lie close together, by their inner products with h: an inverted file."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tfx_largeout.indexes.k_means import k_means, lists_of_points

_MEAN_PROBED = 1 / 16  # of the lists, by default
_ROOM = 1.25  # a list has room for so many times the mean number of classes
_LENGTHS = 0.99  # the quantile of lengths of rows that is R
_BLOCK_ELEMENTS = 2**22


class RowLists(NamedTuple):
    """Lists of rows around centers of k-means.

    The largest inner product is the smallest distance once all rows have the same length:

        |(w, b, sqrt(R^2 - |w|^2 - b^2)) - (h, 1, 0)|^2 = R^2 + |h|^2 + 1 - 2 (w . h + b)

    with R the 0.99 quantile of the lengths of (w, b). Rows longer than R get 0 there: with the
    length of a single very long one, the last coordinate would be nearly all of every point. Lists
    are made around centers of k-means by this distance. Which product is the largest does not
    depend on the length of (h, 1), so that a query is taken for as long as rows are, R: the nearest
    centers have the largest

        <c, (h, 1)> - |(h, 1)| |c|^2 / (2 R),

    with |c| counted as at most R, so that long rows, which often have the largest product, are not
    taken for far.

    References:
        Jégou, Douze, Schmid 2011, Product quantization for nearest neighbor search, section IV
        (the inverted file). Neyshabur, Srebro 2015, On symmetric and asymmetric LSHs for inner
        product search, section 4.2 (the last coordinate).
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
    """Returns how many lists there are if nothing is said."""
    return round(math.sqrt(num_classes))


def default_num_probed(num_lists: int) -> int:
    """Returns how many lists a query looks into if nothing is said."""
    return math.ceil(num_lists * _MEAN_PROBED)


def rows_and_biases(kernel: tf.Variable, bias: tf.Tensor | tf.Variable | None) -> np.ndarray:
    """Returns (w, b, 0) of all rows, `[C, D + 2]` float32, with room for the last coordinate."""
    num_classes, width = kernel.shape
    points = np.zeros((num_classes, width + 2), np.float32)
    block = max(_BLOCK_ELEMENTS // max(width, 1), 1)
    for first in range(0, num_classes, block):
        with np.errstate(over="ignore"):  # of float64: to infinity
            points[first : first + block, :width] = kernel[first : first + block].numpy()
    if bias is not None:
        points[:, width] = bias.numpy()
    return points


def make_row_lists(points: np.ndarray, num_lists: int, seed: int) -> RowLists:
    """Returns lists of the rows of W.

    Cost: k-means over a sample of 64 `num_lists` rows, and O(C num_lists D).

    Args:
        points: What `rows_and_biases` returns, finite; its last coordinate is set.
        num_lists: At most C.
        seed: The same one gives the same lists.
    """
    squares = np.einsum("cd,cd->c", points[:, :-1], points[:, :-1], dtype=np.float64)
    square = np.quantile(squares, _LENGTHS)
    points[:, -1] = np.sqrt(np.maximum(square - squares, 0))
    num_classes = len(points)
    length = min(math.ceil(_ROOM * num_classes / num_lists), num_classes)
    centers = k_means(points, num_lists, seed)
    lists = lists_of_points(points, centers, length)
    order = np.argsort(lists, kind="stable")
    sizes = np.bincount(lists, minlength=num_lists)
    ranks = np.arange(num_classes) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    squares_of_centers = np.minimum(np.einsum("cd,cd->c", centers, centers), square)
    penalties = squares_of_centers / (2 * max(np.sqrt(square), np.finfo(np.float32).tiny))
    penalties = penalties.astype(np.float32)
    return RowLists(lists, order, ranks, sizes, length, centers[:, :-1], penalties)
