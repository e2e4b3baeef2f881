# SPDX-License-Identifier: Apache-2.0
"""Lengths of the code words of a Huffman code. NumPy."""

from __future__ import annotations

import numpy as np

_RAREST = 2.0**-40  # of all: no class is treated as rarer, so no code word is longer than 60


def huffman_code_lengths(counts: np.ndarray) -> np.ndarray:
    """Returns `[C]` int32: the depth of each class in a binary tree of least mean depth.

    Huffman's algorithm joins the two lightest trees, C - 1 times. All trees that are no heavier
    than the sum s of the two lightest get joined before any new one (each weighs s or more), so
    they can be joined in one go, pair by pair. Since s grows by half or more each time, that takes
    fewer than 100 rounds.

    Only the lengths are returned: the mean depth depends on nothing else, and the tree that has its
    leaves in a canonical order needs no pointers (see `HuffmanTree`).

    Cost: O(C log C) time; memory 60 bytes a class.

    Args:
        counts: `[C]`, positive, C at least 2.

    References:
        Huffman 1952, A Method for the Construction of Minimum-Redundancy Codes. Two queues: van
        Leeuwen 1976, On the construction of Huffman trees.
    """
    order = np.argsort(counts, kind="stable")
    weights = counts[order].astype(np.float64)
    # A sum one after the other is the same to the last bit on each machine.
    leaves = np.maximum(weights, np.cumsum(weights)[-1] * _RAREST)
    lengths = np.empty(len(counts), np.int32)
    lengths[order] = _depths(_rounds(leaves), len(counts))
    return lengths


def _rounds(leaves: np.ndarray) -> list[np.ndarray]:
    """Joins trees. Leaves are trees 0 to C - 1, joined ones get the numbers C, C + 1, ...

    Returns:
        For each round the trees that it joins: pairs of neighbours.
    """
    joined = np.empty(len(leaves) - 1)  # weights of the joined trees: they come out in order
    made, taken_leaves, taken_joined = 0, 0, 0
    rounds = []
    while taken_leaves + taken_joined < 2 * len(leaves) - 2:
        lightest = np.concatenate(
            [leaves[taken_leaves : taken_leaves + 2], joined[taken_joined:made][:2]]
        )
        limit = np.sort(lightest)[:2].sum()
        more_leaves = int(np.searchsorted(leaves[taken_leaves:], limit, "right"))
        more_joined = int(np.searchsorted(joined[taken_joined:made], limit, "right"))
        trees = np.concatenate(
            [
                np.arange(taken_leaves, taken_leaves + more_leaves),
                len(leaves) + np.arange(taken_joined, taken_joined + more_joined),
            ]
        )
        weights = np.concatenate(
            [
                leaves[taken_leaves : taken_leaves + more_leaves],
                joined[taken_joined : taken_joined + more_joined],
            ]
        )
        by_weight = np.argsort(weights, kind="stable")[: len(weights) // 2 * 2]
        trees = trees[by_weight]
        pairs = weights[by_weight].reshape(-1, 2).sum(axis=1)
        joined[made : made + len(pairs)] = pairs
        made += len(pairs)
        from_leaves = int(np.count_nonzero(trees < len(leaves)))
        taken_leaves, taken_joined = (
            taken_leaves + from_leaves,
            taken_joined + len(trees) - from_leaves,
        )
        rounds.append(trees)
    return rounds


def _depths(rounds: list[np.ndarray], num_leaves: int) -> np.ndarray:
    """Returns the depth of each leaf, from the root (which was joined last) down."""
    depths = np.zeros(2 * num_leaves - 1, np.int32)
    parents_end = 2 * num_leaves - 1
    for trees in reversed(rounds):
        parents = np.arange(parents_end - len(trees) // 2, parents_end)
        parents_end = int(parents[0])
        depths[trees] = np.repeat(depths[parents], 2) + 1
    return depths[:num_leaves]
