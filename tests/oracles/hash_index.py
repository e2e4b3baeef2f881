# SPDX-License-Identifier: Apache-2.0
"""Hash codes, tables and candidates from buckets, in NumPy float64: one by one."""

from __future__ import annotations

from collections import Counter

import numpy as np


def winners(vectors, elements):
    """Returns the place of the greatest of each window, the first of equal ones, `[n, H]`."""
    return np.argmax(np.asarray(vectors, np.float64)[:, elements], axis=2)


def fill_empty(values, is_empty):
    """Fills empty bins with the value of the nearest non-empty one, cyclically (ties: the later).

    Returns None if all of them are empty.
    """
    if is_empty.all():
        return None
    filled, bins = values.copy(), len(values)
    for j in np.flatnonzero(is_empty):
        distance = 1
        while True:
            later, earlier = (j + distance) % bins, (j - distance) % bins
            if not is_empty[later] or not is_empty[earlier]:
                filled[j] = values[later] if not is_empty[later] else values[earlier]
                break
            distance += 1
    return filled


def winner_values(vectors, elements, bins):
    """Returns the value of each function, `[n, H]`; -1 where a permutation has only zeros."""
    values = winners(vectors, elements)
    if bins == 1:
        return values
    is_empty = (np.asarray(vectors)[:, elements] == 0).all(axis=2)
    for i, row in enumerate(is_empty):
        for first in range(0, len(elements), bins):
            of_group = slice(first, first + bins)
            if row[of_group].any():
                filled = fill_empty(values[i, of_group], row[of_group])
                values[i, of_group] = -1 if filled is None else filled
    return values


def products(vectors, planes):
    """Returns `[n, H]`."""
    return np.asarray(vectors, np.float64) @ np.asarray(planes, np.float64).T


def sign_values(vectors, planes):
    """Returns on which side of each plane vectors are, `[n, H]`."""
    return (products(vectors, planes) > 0).astype(int)


def codes(vectors, values, base, num_tables, hashes_per_table):
    """Returns the number with K values as its digits for each table, `[n, L]`; -1 for none."""
    found = np.full((len(vectors), num_tables), -1)
    for i, vector in enumerate(vectors):
        if not np.any(vector):
            continue
        for t in range(num_tables):
            digits = values[i, t * hashes_per_table : (t + 1) * hashes_per_table]
            if (digits >= 0).all():
                found[i, t] = sum(int(digit) * base**k for k, digit in enumerate(digits))
    return found


def longer_rows(rows, biases, radii):
    """Returns (w, b, sqrt(R^2 - |w|^2 - b^2)), R being the smallest radius that fits, `[n, D + 2]`.

    Also the place of that radius, `[n]`. Where none fits, it is the first, and the root 0.
    """
    vectors, places = [], []
    for row, bias in zip(rows, biases, strict=True):
        square = (row**2).sum() + bias**2
        place = max([r for r, radius in enumerate(radii) if square <= radius**2], default=0)
        rest = np.sqrt(max(radii[place] ** 2 - square, 0))
        vectors.append([*row, bias, rest])
        places.append(place)
    return np.array(vectors), np.array(places)


def table(codes_of_classes, num_buckets):
    """Returns the classes by bucket, then -1, and where each bucket begins."""
    buckets = [np.flatnonzero(codes_of_classes == b) for b in range(num_buckets)]
    entries = np.full(len(codes_of_classes), -1)
    starts = np.concatenate([[0], np.cumsum([len(bucket) for bucket in buckets])])
    entries[: starts[-1]] = np.concatenate(buckets)
    return entries, starts


def visited(entries, starts, codes_of_example, order, rotations, max_per_bucket, num_ranges=1):
    """Returns the classes that an example with codes `[Q, L]` comes across, with turns."""
    classes = []
    buckets_of_range = (starts.shape[1] - 1) // num_ranges
    for r in range(num_ranges):
        for i, t in enumerate(order):
            for code in codes_of_example[:, t]:
                if code < 0:
                    continue
                place = r * buckets_of_range + code
                bucket = entries[t, starts[t, place] : starts[t, place + 1]]
                first = int(rotations[t]) * len(bucket) >> 32
                seen = np.roll(bucket, -first)[:max_per_bucket]
                classes += [(int(c), r * len(order) + i) for c in seen]
    return classes


def own_candidates(visits, budget, num_turns):
    """Returns `[N, S]` ids and turns; `visits` has the visits of each example."""
    ids = np.full((len(visits), budget), -1)
    turns = np.full((len(visits), budget), num_turns)
    for i, classes in enumerate(visits):
        first = {}
        for c, turn in classes:
            first.setdefault(c, turn)
        found = list(first)[:budget]
        ids[i, : len(found)] = found
        turns[i, : len(found)] = [first[c] for c in found]
    return ids, turns


def shared_candidates(visits, first_class, num_classes, budget):
    """Returns `[S]` ids and votes."""
    votes = Counter(c for classes in visits for c, _ in classes)
    by_votes = sorted(votes, key=lambda c: (-votes[c], (c - first_class) % num_classes))
    found = sorted(by_votes[:budget])
    missing = budget - len(found)
    return np.array(found + [-1] * missing), np.array([votes[c] for c in found] + [0] * missing)
