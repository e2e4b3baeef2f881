# SPDX-License-Identifier: Apache-2.0
"""choose_hash_index: H and L of a hash index, for a recall or for a number of candidates."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from tfx_largeout.arguments import (
    at_most_classes,
    integer_argument,
    integers_argument,
    number_argument,
)
from tfx_largeout.distribute.workers import require_alone
from tfx_largeout.indexes.hash_index import HashIndex
from tfx_largeout.indexes.longest_row import longest_row, radii
from tfx_largeout.ops.exact.streamed_logits import streamed_logits
from tfx_largeout.ops.hashing.hash_codes import MAX_BUCKETS, HashFunctions, hash_codes
from tfx_largeout.ops.hashing.hash_tables import HashedRows
from tfx_largeout.ops.rows.variable_rows import bare_variable

_NUM_TABLES = (5, 10, 20, 30, 50)
_BUCKETS_A_CLASS = 4  # with more buckets per class, most are empty
_ALL = float(np.finfo(np.float64).max)  # below infinity, the place of classes not found
_STANDARD_ERRORS = 2  # safety margin of a target
_NO_BUCKET = -1
_ROWS = 2048  # rows of W drawn to estimate the size of buckets
_QUERIES = 64  # queries in the first trials
_QUERIES_AT_ONCE = 32  # queries whose candidates are in memory

Statistics = dict[str, float]


class Found(NamedTuple):
    """The positions of the best classes among the found ones; samplers and `TopK` use the first.

    Attributes:
        before: `[N, k, n]`, the number of classes found before the bucket of a class is read;
            infinite if it is in none.
        size: `[N, k, n]`, the number of classes found in this bucket, at least 1; the class may be
            any of them.
        chances: `[N, k, n]`, the probability of each bucket; they sum to at most 1.
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
        """A number of candidates with which every reachable class is found."""
        all_places = (self.before + self.size)[np.isfinite(self.before)]
        return int(np.ceil(all_places.max(initial=1)))


class _Target(NamedTuple):
    """A target recall, or a number of candidates; the other one is None."""

    recall: float | None
    num_found: int | None

    def num_found_for(self, found: Found, standard_errors: float) -> int | None:
        """Returns the number of candidates that meets the target, with standard errors; or None."""
        if self.recall is None:
            return self.num_found
        too_few, enough = 0, found.most
        if _sure(found, enough, standard_errors) < self.recall:
            return None
        while enough - too_few > 1:
            middle = (too_few + enough) // 2
            if _sure(found, middle, standard_errors) < self.recall:
                too_few = middle
            else:
                enough = middle
        return enough

    def cost(self, found: Found) -> float:
        """Returns the value to minimize: the number of candidates, or minus the recall."""
        num_found = self.num_found_for(found, 0)
        if num_found is None:
            return math.inf
        return -found.recall(num_found).mean() if self.recall is None else num_found


def choose_hash_index(
    like: HashIndex,
    kernel: Any,
    bias: Any,
    queries: Any,
    *,
    recall: float | None = None,
    num_found: int | None = None,
    k: int = 10,
    hashes_per_table: Sequence[int] | None = None,
    num_tables: Sequence[int] = _NUM_TABLES,
) -> tuple[HashIndex, Statistics]:
    """Returns a hash index with H and L chosen for a recall, or for a number of candidates.

    A query reads buckets, of longer rows first, until it has `num_found` classes, as with
    `TopK(..., num_found=...)` and `LSHEmbedding(num_found, per_example=True)`. The recall is the
    share of the k classes with the greatest logits o = W h + b among them.

    - `recall`: H and L that reach it with the fewest candidates, and this number.
    - `num_found`: H and L with the highest recall for this number of candidates.

    The recall is a mean over the queries. The recall must exceed the target by two standard errors,
    so that other queries of the same kind also meet it; use a few hundred queries.

    First all H and L are tried with the first 64 queries, on 2,048 rows of W and the best rows of
    each query. Then indexes are built over all of W, the most promising first, until one meets the
    target with all queries (with `num_found`: only the first). The choice is logged by `logging` at
    the level INFO. It depends only on the arguments and on `like.seed`; nothing is changed, not
    even the state of a random generator.

    ```python
    like = HashIndex(SimHash(), similarity="inner_product")
    index, found = choose_hash_index(like, head.kernel, head.bias, hidden, recall=0.9)
    index.rebuild(head.kernel, head.bias)
    best = TopK(head, 10, num_found=found["num_found"], index=index)
    ```

    Cost: a pass over all classes for the best ones, O(N C D); at least O(2,048 (D + 64) H L) to try
    each H with the greatest L; and per index built O(L C H D) time and 4 C L bytes.

    Args:
        like: An index with the other arguments of the new one: family, similarity, seed, ... Its H
            and L are not used. It need not be built, and does not change.
        kernel: W `[C, D]` of a trained head, a variable or an array. The best H and L depend on the
            weights.
        bias: b `[C]`, a variable or an array, or None.
        queries: h `[N, D]`, finite, at least two: hidden activations of the model.
        recall: In (0, 1]. Give this or `num_found`.
        num_found: The largest number of candidates of a query, at most C.
        k: The number of best classes. Default 10.
        hashes_per_table: The values of H to try. Default None: all with at most four buckets per
            class in a table.
        num_tables: The values of L to try. Default 5, 10, 20, 30, 50: memory and upkeep of the
            index grow with L.

    Returns:
        A new index that is not built, whose `get_config` has H and L; and statistics:
        `hashes_per_table`, `num_tables`, `num_found`, and, measured over all of W, `recall` and its
        standard error, `recall_error`.

    Raises:
        TypeError: `like` is not a `HashIndex`.
        ValueError: An argument is out of range, or no H and L that were tried meet the target.
        RuntimeError: The classes are spread over several workers.
        tf.errors.InvalidArgumentError: W or h is not finite.
    """
    require_alone("choose_hash_index")
    if not isinstance(like, HashIndex):
        raise TypeError(f"like must be a HashIndex; got {like!r}")
    kernel, bias = _variable(kernel), None if bias is None else _variable(bias)
    queries = _checked_queries(queries, kernel)
    num_classes = kernel.shape[0]
    target, k = _target(recall, num_found, num_classes), _at_most_all("k", k, num_classes)
    all_hashes, tables = _grid(like, hashes_per_table, num_tables, num_classes)
    no_labels = tf.zeros([queries.shape[0], 0], tf.int64)
    best = streamed_logits(queries, kernel, bias, no_labels, k=k).top_ids.numpy()
    trials = TableTrials(like, kernel, bias, queries, best, max(all_hashes) * max(tables))
    expected = {
        (hashes, number): found
        for hashes in all_hashes
        for number, found in trials.found(hashes, tables).items()
    }
    tried: dict[tuple[int, int], Found] = {}
    for pair in _most_promising(target, expected, tried):
        index = _with(like, *pair)
        index.rebuild(kernel, bias)
        tried[pair] = found_by(index, queries, best)
        number = target.num_found_for(tried[pair], _STANDARD_ERRORS)
        if number is not None:
            statistics = _statistics(*pair, tried[pair], number)
            logging.getLogger(__name__).info("choose_hash_index: %s", statistics)
            return _with(like, *pair), statistics
    raise ValueError(_refusal(recall, tried or expected))


def _most_promising(
    target: _Target,
    expected: dict[tuple[int, int], Found],
    tried: dict[tuple[int, int], Found],
) -> Iterator[tuple[int, int]]:
    """Yields H and L that are expected to meet the target, the best first; ties: small ones first.

    Leaves out H and L that are expected to find no more than a trial that failed.
    """
    costs = {pair: target.cost(found) for pair, found in expected.items()}
    for pair in sorted(costs, key=lambda pair: (costs[pair], pair[::-1])):
        least = max([-math.inf, *(_sure(expected[other]) for other in tried)])
        if math.isfinite(costs[pair]) and _sure(expected[pair]) > least:
            yield pair


def _target(recall: Any, num_found: Any, num_classes: int) -> _Target:
    if (recall is None) == (num_found is None):
        raise ValueError(
            "either recall or num_found must be given; got "
            f"recall={recall!r}, num_found={num_found!r}"
        )
    if recall is not None:
        return _Target(number_argument("recall", recall, above=0, at_most=1), None)
    return _Target(None, _at_most_all("num_found", num_found, num_classes))


def _at_most_all(name: str, value: Any, num_classes: int) -> int:
    value = integer_argument(name, value, at_least=1)
    at_most_classes(name, value, num_classes)
    return value


def _grid(
    like: HashIndex, hashes: Sequence[int] | None, num_tables: Sequence[int], num_classes: int
) -> tuple[list[int], list[int]]:
    """Returns the values of H and of L to try."""
    tables = integers_argument("num_tables", num_tables, at_least=1)
    if hashes is not None:
        all_hashes = integers_argument("hashes_per_table", hashes, at_least=1)
        _with(like, max(all_hashes), max(tables))  # raises for too many buckets
        return all_hashes, tables
    most = min(MAX_BUCKETS, _BUCKETS_A_CLASS * num_classes) / like.num_ranges
    return list(range(1, max(int(math.log(most, like.family.num_values)), 1) + 1)), tables


def _variable(values: Any) -> tf.Variable:
    if isinstance(values, (tf.Variable, keras.Variable)):
        return bare_variable(values)
    return tf.Variable(values, trainable=False)


def _checked_queries(queries: Any, kernel: tf.Variable) -> tf.Tensor:
    queries = tf.cast(tf.convert_to_tensor(queries), tf.float32)
    if kernel.shape.rank != 2 or queries.shape.rank != 2 or queries.shape[0] < 2:
        raise ValueError(
            "kernel must be [C, D] and queries [N, D], N at least 2; got shapes "
            f"{list(kernel.shape)} and {list(queries.shape)}"
        )
    if queries.shape[1] != kernel.shape[1]:
        raise ValueError(
            f"queries must be as wide as kernel, {kernel.shape[1]}; got shape {list(queries.shape)}"
        )
    return queries


def _with(like: HashIndex, hashes: int, num_tables: int) -> HashIndex:
    config = {**like.get_config(), "hashes_per_table": hashes, "num_tables": num_tables}
    return HashIndex.from_config(config)


def _sure(
    found: Found, num_found: float = _ALL, standard_errors: float = _STANDARD_ERRORS
) -> float:
    """Returns the mean recall minus some standard errors."""
    recall = found.recall(num_found)
    return float(recall.mean() - standard_errors * _error(recall))


def _error(values: np.ndarray) -> float:
    """Returns the standard error of a mean."""
    return float(values.std(ddof=1) / math.sqrt(len(values)))


def _statistics(hashes: int, num_tables: int, found: Found, num_found: float) -> Statistics:
    recall = found.recall(num_found)
    return {
        "hashes_per_table": hashes,
        "num_tables": num_tables,
        "num_found": num_found,
        "recall": float(recall.mean()),
        "recall_error": _error(recall),
    }


def _refusal(recall: float | None, found: dict[tuple[int, int], Found]) -> str:
    hashes, tables = nearest = max(found, key=lambda pair: _sure(found[pair]))
    values = found[nearest].recall(_ALL)
    return (
        f"recall must be one that an index meets by two standard errors; got {recall}, and the "
        f"most is {values.mean():.3g} +- {_error(values):.2g}, with hashes_per_table={hashes} and "
        f"num_tables={tables}. Try other values of these, or another family, similarity or "
        "max_per_bucket."
    )


class TableTrials:
    """Hash values of queries, of their best classes and of some rows of W, drawn once for all H, L.

    In table t a query q reads this share of its bucket in the range r of lengths

        s = min(1, max_per_bucket / n_tr(q)),  n_tr(q) = C / M #{drawn rows in the bucket},

    and finds a class there with probability s, unless it was found before. Ranges are read one
    after the other, and in each of them the tables. So the expected number of classes found before
    table t in range r is C / M times the sum of 1 - prod (1 - s) over the drawn rows: rows of
    earlier ranges, with all tables, and rows of range r, with tables before t.

    Cost: O((M + N k) H D) for H functions.

    Args:
        like: The index with the family, similarity and seed.
        kernel: W, a variable.
        bias: b, a variable or None.
        queries: `[N, D]`; the first 64 are used.
        best: `[N, k]` ids of the best classes of each query.
        num_functions: The number of functions; H L must be at most this.
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
        # An index with fewer functions has the first functions of one with more.
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
        """Returns the classes that tables of H functions are expected to find, for several L.

        Cost: O(N (M + k) L) comparisons for the greatest L.
        """
        base = self._like.family.num_values
        queries, rows, best = (
            _codes(values, hashes_per_table, max(all_num_tables), base)
            for values in (self._queries, self._rows, self._best)
        )
        in_range = np.eye(self._like.num_ranges, dtype=np.float32)[self._row_ranges]
        missed_rows = np.ones([len(queries), len(rows)], np.float32)
        missed_best = np.ones(self._best_ranges.shape, np.float32)
        numbers = [np.zeros([len(queries), self._like.num_ranges])]  # for the tables so far
        chances = []
        for table in range(max(all_num_tables)):
            code = queries[:, table, np.newaxis]
            code = np.where(code == _NO_BUCKET, _NO_BUCKET - 1, code)  # matches no other
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
        """Returns `before` and `size` for the best classes in each table, `[N, k, L]`.

        `numbers` `[L + 1, N, ranges]`: the number of classes of each range in the first tables.
        """
        ranges_before = np.cumsum(numbers[-1], axis=-1) - numbers[-1]
        before = ranges_before + numbers[:-1]
        size = np.maximum(np.diff(numbers, axis=0), 1)
        ranges = np.broadcast_to(self._best_ranges, (len(before), *self._best_ranges.shape))
        before, size = (np.take_along_axis(each, ranges, axis=-1) for each in (before, size))
        return np.moveaxis(before, 0, -1), np.moveaxis(size, 0, -1)

    def _share_read(self, query: np.ndarray, row: np.ndarray) -> np.ndarray:
        """Returns the share of its bucket that a query reads in each range, `[N, ranges]`."""
        num_ranges = self._like.num_ranges
        shape = (len(self._queries), num_ranges)
        places = query * num_ranges + self._row_ranges[row]
        drawn = np.bincount(places, minlength=shape[0] * shape[1]).reshape(shape)
        return np.minimum(1, self._like.max_per_bucket / np.maximum(drawn * self._classes_a_row, 1))


def found_by(index: HashIndex, queries: Any, best: np.ndarray) -> Found:
    """Returns the positions of the best classes `[N, k]` in the tables of an index; n is 1."""
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
    """Returns the values of single functions, `[n, count]`; -1: none."""
    return hash_codes(vectors, functions, count, hashes_per_table=1).numpy()


def _codes(values: np.ndarray, hashes: int, num_tables: int, base: int) -> np.ndarray:
    """Returns codes of H values each, `[..., L]`; -1 if a value is -1."""
    values = values[..., : hashes * num_tables].reshape(*values.shape[:-1], num_tables, hashes)
    codes = values @ (base ** np.arange(hashes)).astype(values.dtype)
    return np.where((values < 0).any(axis=-1), _NO_BUCKET, codes)
