# SPDX-License-Identifier: Apache-2.0
"""What tables with other K and L would find, from the hash values of a few rows of W."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfx_largeout.indexes.hash_index import HashIndex
from tfx_largeout.indexes.longest_row import longest_row, radii
from tfx_largeout.ops.hashing.hash_codes import HashFunctions, hash_codes
from tfx_largeout.ops.hashing.hashed_rows import HashedRows

_NO_BUCKET = -1
_ROWS = 2048  # of W, drawn to see how full buckets are
_QUERIES = 64  # that are tried
_QUERIES_AT_ONCE = 32  # whose candidates are in memory


class Found(NamedTuple):
    """When the best classes of queries come up, of which a sampler or `TopK` takes the first.

    Attributes:
        before: `[N, k, n]`, how many classes come up before the bucket of a class is read; infinite
            where it is in none.
        size: `[N, k, n]`, how many classes come up with that bucket, at least 1; the class may be
            any of them.
        chances: `[N, k, n]`, how likely each of the buckets is; they add up to at most 1.
    """

    before: np.ndarray
    size: np.ndarray
    chances: np.ndarray

    def recall(self, num_found: float) -> np.ndarray:
        """Returns the share of the best classes that are among the first `num_found`, `[N]`."""
        read = np.clip((num_found - self.before) / self.size, 0, 1)
        return (read * self.chances).sum(axis=-1).mean(axis=-1)

    @property
    def most(self) -> int:
        """A number of classes with which all are found that can be."""
        all_places = (self.before + self.size)[np.isfinite(self.before)]
        return int(np.ceil(all_places.max(initial=1)))


class TableTrials:
    """Hash values of queries, of their best classes and of some rows of W, drawn once for all K, L.

    In table t a query q reads of its bucket in the range r of lengths the share

        s = min(1, max_per_bucket / n_tr(q)),  n_tr(q) = C / M #{drawn rows in the bucket},

    and finds a class there with probability s, if it did not before. Ranges come one after the
    other, and in each of them the tables. So the expected number of classes before those of table t
    in range r is C / M times the sum of 1 - prod (1 - s) over the drawn rows: those of the ranges
    before, by all tables, and those of range r, by tables before t.

    Cost: O((M + N k) H D) for H functions.

    Args:
        like: Whose family, similarity and seed count.
        kernel: W `[C, D]`, a variable.
        bias: b `[C]`, a variable or None.
        queries: `[N, D]`, of which the first 64 count.
        best: `[N, k]` ids of the best classes of each query.
        num_functions: H; K and L may be tried with K L <= H.
    """

    def __init__(
        self, like: HashIndex, kernel: Any, bias: Any, queries: Any, best: Any, num_functions: int
    ) -> None:
        num_classes = kernel.shape[0]
        queries, best = queries[:_QUERIES], best[:_QUERIES]
        drawn = np.random.default_rng([like.seed, 1]).choice(
            num_classes, min(_ROWS, num_classes), replace=False
        )
        radius = tf.constant(0.0)
        if like.num_radii:
            radius = longest_row(kernel, bias, tf.range(num_classes, dtype=tf.int64))
        biases = [] if bias is None else [bias]
        rows = HashedRows(kernel, biases, radii(radius, like.num_radii))
        ids = tf.concat([drawn, tf.reshape(best, [-1])], axis=0)
        vectors, ranges = rows.get(ids)
        # The first functions of an index with more of them are those of one with fewer.
        rng = np.random.default_rng(like.seed)
        functions = like.family.functions(vectors.shape[1], num_functions, rng)
        values = _values(vectors, functions, num_functions)
        self._queries = _values(like.hashed_queries(queries), functions, num_functions)
        self._rows, best_values = np.split(values, [len(drawn)])
        self._best = best_values.reshape(*best.shape, num_functions)
        self._row_ranges, best_ranges = np.split(ranges.numpy(), [len(drawn)])
        self._best_ranges = best_ranges.reshape(best.shape)
        self._like = like
        self._classes_a_row = num_classes / len(drawn)

    def found(self, hashes_per_table: int, all_num_tables: list[int]) -> dict[int, Found]:
        """Returns what tables of K functions are expected to find, for several L.

        Cost: O(N (M + k) L) comparisons for the greatest L.

        Args:
            hashes_per_table: K.
            all_num_tables: The values of L.
        """
        base = self._like.family.num_values
        queries, rows, best = (
            _codes(values, hashes_per_table, max(all_num_tables), base)
            for values in (self._queries, self._rows, self._best)
        )
        in_range = np.eye(self._like.num_ranges, dtype=np.float32)[self._row_ranges]
        missed_rows = np.ones([len(queries), len(rows)], np.float32)
        missed_best = np.ones(self._best_ranges.shape, np.float32)
        numbers = [np.zeros([len(queries), self._like.num_ranges])]  # by the tables so far
        chances = []
        for table in range(max(all_num_tables)):
            code = queries[:, table, np.newaxis]
            code = np.where(code == _NO_BUCKET, _NO_BUCKET - 1, code)  # it meets no other
            query, row = np.nonzero(code == rows[np.newaxis, :, table])
            share = self._share_read(query, row)
            missed_rows[query, row] *= 1 - share[query, self._row_ranges[row]]
            numbers.append(self._classes_a_row * (1 - missed_rows) @ in_range)
            meets = code == best[:, :, table]
            chance = meets * np.take_along_axis(share, self._best_ranges, axis=1)
            chances.append(missed_best * chance)
            missed_best *= 1 - chance
        number, likely = np.stack(numbers), np.stack(chances, axis=-1)
        return {
            num_tables: Found(*self._places(number[: num_tables + 1]), likely[..., :num_tables])
            for num_tables in all_num_tables
        }

    def _places(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns `before` and `size` of the best classes in each table, `[N, k, L]`.

        Args:
            numbers: `[L + 1, N, ranges]`, how many classes of each range the first tables find.
        """
        ranges_before = np.cumsum(numbers[-1], axis=-1) - numbers[-1]
        before = ranges_before + numbers[:-1]
        size = np.maximum(np.diff(numbers, axis=0), 1)
        ranges = np.broadcast_to(self._best_ranges, (len(before), *self._best_ranges.shape))
        before, size = (np.take_along_axis(each, ranges, axis=-1) for each in (before, size))
        return np.moveaxis(before, 0, -1), np.moveaxis(size, 0, -1)

    def _share_read(self, query: np.ndarray, row: np.ndarray) -> np.ndarray:
        """Returns which share of its bucket in each range a query reads, `[N, ranges]`."""
        num_ranges = self._like.num_ranges
        shape = (len(self._queries), num_ranges)
        places = query * num_ranges + self._row_ranges[row]
        drawn = np.bincount(places, minlength=shape[0] * shape[1]).reshape(shape)
        return np.minimum(1, self._like.max_per_bucket / np.maximum(drawn * self._classes_a_row, 1))


def found_by(index: HashIndex, queries: Any, best: np.ndarray) -> Found:
    """Returns when the best classes come up in the tables of an index; n is 1.

    Args:
        index: Built.
        queries: `[N, D]`.
        best: `[N, k]` ids of the best classes of each.
    """
    num_classes = index.tables.touched_at.shape[0]
    most = min(num_classes, index.num_tables * index.num_ranges * index.max_per_bucket)
    before = np.full(best.shape, np.inf)
    for first in range(0, len(queries), _QUERIES_AT_ONCE):
        some = slice(first, first + _QUERIES_AT_ONCE)
        seed = tf.constant([index.seed, first], tf.int64)
        ids = index.candidates(queries[some], most, seed, per_example=True).numpy()
        for number, (classes, found) in enumerate(zip(best[some], ids, strict=True), first):
            _, of_best, place = np.intersect1d(classes, found, return_indices=True)
            before[number, of_best] = place
    ones = np.ones([*best.shape, 1])
    return Found(before[..., np.newaxis], ones, ones)


def _values(vectors: tf.Tensor, functions: HashFunctions, count: int) -> np.ndarray:
    """Returns the values of single functions, `[n, count]`; -1 where there is none."""
    return hash_codes(vectors, functions, count, hashes_per_table=1).numpy()


def _codes(values: np.ndarray, hashes: int, num_tables: int, base: int) -> np.ndarray:
    """Returns codes of K values each, `[..., L]`; -1 where there is a value of -1."""
    values = values[..., : hashes * num_tables].reshape(*values.shape[:-1], num_tables, hashes)
    codes = values @ (base ** np.arange(hashes)).astype(values.dtype)
    return np.where((values < 0).any(axis=-1), _NO_BUCKET, codes)
