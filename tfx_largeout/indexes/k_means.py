# SPDX-License-Identifier: Apache-2.0
"""k-means, and lists of points around the centers, none longer than others may be."""

from __future__ import annotations

import numpy as np

_ROUNDS = 10
_SAMPLE = 64  # points a center
_BLOCK_ELEMENTS = 2**24  # distances that exist at a time: 64 MiB
_CHOICES = 16  # centers that a point may go to, before it goes wherever there is room


def k_means(points: np.ndarray, num_centers: int, seed: int) -> np.ndarray:
    """Returns centers `[num_centers, D]`, by ten of Lloyd's rounds over a sample of the points.

    A center to which no point is nearest moves to a point far from its own.

    Cost: O(64 num_centers^2 D) a round.

    Args:
        points: `[n, D]` float32, n >= num_centers.
        num_centers: At least 1.
        seed: The same one gives the same centers.
    """
    random = np.random.default_rng(seed)
    count = min(len(points), _SAMPLE * num_centers)
    sample = points[np.sort(random.choice(len(points), count, replace=False))]
    centers = sample[random.choice(count, num_centers, replace=False)]
    for _ in range(_ROUNDS):
        nearest, distances = nearest_centers(sample, centers, 1)
        own = nearest[:, 0]
        sizes = np.bincount(own, minlength=num_centers)
        order = np.argsort(own, kind="stable")
        starts = np.concatenate([[0], np.cumsum(sizes)])[:-1]
        there = sizes > 0
        centers[there] = np.add.reduceat(sample[order], starts[there]) / sizes[there, np.newaxis]
        centers[~there] = sample[np.argsort(-distances[:, 0], kind="stable")[: np.sum(~there)]]
    return centers


def nearest_centers(
    points: np.ndarray, centers: np.ndarray, count: int
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the nearest centers of each point `[n, count]`, nearest first, and |c|^2 - 2 c.x."""
    squares = np.einsum("cd,cd->c", centers, centers)
    ids = np.empty((len(points), count), np.int32)
    distances = np.empty((len(points), count), np.float32)
    block = max(_BLOCK_ELEMENTS // len(centers), 1)
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


def lists_of_points(points: np.ndarray, centers: np.ndarray, length: int) -> np.ndarray:
    """Returns the list of each point, `[n]`: around its nearest center, but for full lists.

    A list that is full keeps the points that are nearest; others go to their next nearest center.

    Args:
        points: `[n, D]`.
        centers: `[num_centers, D]`, num_centers length >= n.
        length: The most points of a list.
    """
    count = min(_CHOICES, len(centers))
    choices, distances = nearest_centers(points, centers, count)
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
