# SPDX-License-Identifier: Apache-2.0
"""HashIndex: hash tables over the rows of W that follow them while they are trained."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import keras
import numpy as np
import tensorflow as tf

from tfx_largeout.arguments import (
    at_most_classes,
    choice_argument,
    integer_argument,
    number_argument,
)
from tfx_largeout.class_filter import ClassFilter
from tfx_largeout.devices import HOST
from tfx_largeout.distribute.workers import ALONE
from tfx_largeout.indexes.base import Index, SearchIndex, filled
from tfx_largeout.indexes.found_by_all import first_of_each, most_voted
from tfx_largeout.indexes.hash_family import DWTAHash, HashFamily, SimHash
from tfx_largeout.indexes.longest_row import grown_radius, longest_row, radii
from tfx_largeout.indexes.table_health import share_that_moved, table_sizes
from tfx_largeout.indexes.table_schedule import Turn, first_schedule, renumber
from tfx_largeout.memory import Weight
from tfx_largeout.ops.class_rows import ClassRows
from tfx_largeout.ops.hashing.bucket_candidates import BucketOrder, bucket_candidates
from tfx_largeout.ops.hashing.hash_codes import MAX_BUCKETS, HashFunctions, hash_codes
from tfx_largeout.ops.hashing.hash_tables import HashedRows, HashTables, update_tables
from tfx_largeout.ops.rows.variable_rows import bare_variable, signed
from tfx_largeout.statistics import TopScores

_SIMILARITIES = ("angle", "inner_product")
_PLAIN_ARGUMENTS = (
    *("hashes_per_table", "num_tables", "first_period", "growth", "max_drift"),
    *("similarity", "length_ranges", "max_per_bucket", "seed"),
)
_MOST_RANGES = 32  # the last range has rows shorter than R / 280,000

SEARCH_SEED = (0, 0)
"""With which tables are read in a search: the same classes are found each time."""


@keras.saving.register_keras_serializable(package="tfx_largeout")
class HashIndex(Index, SearchIndex):
    """L hash tables over the rows of W. In each table, near rows are likely to share a bucket.

    The bucket of a row is given by H hash values (`hashes_per_table`). A query finds the classes
    whose rows share its bucket in one of the L tables: a class whose row has the same value as the
    query in one hash function with probability p is found with probability 1 - (1 - p^H)^L.

    **Following W.** Training changes rows. `update`, which a head calls at the end of each step,
    marks the changed ones, and updates a few tables, so that all tables are updated once per period
    (a round): at first `first_period` steps, and `growth` times as many after each round. With
    `max_drift`, the period shrinks by this factor after a round in which a greater share of the
    classes moved to another bucket. Only marked rows are hashed again. The work is part of the
    step, on all threads: so runs are reproducible and can be resumed, bit for bit, unlike with
    tables built in the background. After other changes of W, such as loading it, call `rebuild`.

    **Similarity.** With `"angle"`, as in the papers, the length of a row and its bias are ignored:
    if they differ much, the classes with the greatest logits are not found. With `"inner_product"`,
    rows are hashed as (w, b, sqrt(R_r^2 - |w|^2 - b^2)) and queries as (h, 1, 0), whose angle
    depends only on <h, w> + b. Rows are split into m ranges by their length: with R the longest,
    the first range has rows longer than R / 1.5, the next rows longer than R / 1.5^2 and so on, the
    last the rest; R_r = R / 1.5^r. Each range has separate buckets, and a query reads buckets of
    longer rows first: a single radius would move most rows close to one point of the sphere. R is
    the longest row after `rebuild`. At the start of each round a longer row is searched among every
    (C / 4,096)-th row and the changed rows; if it is longer by a quarter, its length is the new R,
    and all rows are hashed again. R shrinks only in a rebuild. This needs `SimHash`, because
    winners don't depend on lengths.

    A query of zeros finds nothing, and by angle a row of zeros is in no bucket: it has no winner,
    and no side of a plane. `health` returns how many classes can't be found.

    Cost: 4 (C + buckets) bytes per table and 4 C in total, as weights that are saved with the
    model; a query O(H L) hashes and m L buckets; a round O(L (C + changed rows (D + H))).

    Args:
        family: The hash functions: `DWTAHash`, `WTAHash` or `SimHash`. Default `DWTAHash()`.
        hashes_per_table: H; a table has v^H buckets per range of lengths, with v the number of
            values of a function; at most 2^24. Default 6.
        num_tables: L. Default 50.
        first_period: Steps of the first round, and of the shortest round. Default 50.
        growth: The growth of the period from round to round, at least 1. Default 1.1.
        max_drift: The share of the classes, averaged over tables, that may move in a round for the
            period to grow; if more move, it shrinks. Default None: it always grows, as in the
            paper.
        similarity: `"angle"` or `"inner_product"`. Default `"angle"`.
        length_ranges: m, with inner products; at most 32. Default 4; 8 find more for candidates
            per example, as in `TopK`, but less for shared ones.
        max_per_bucket: The largest number of classes of a bucket that a query reads, from a
            random position on. Default 256.
        seed: The seed of the hash functions. Default 0.
        **kwargs: `name`, as for any Keras layer.

    Raises:
        TypeError: `family` is not a hash family.
        ValueError: An argument is out of range; later, the shape of W differs from the first one.

    References:
        Daghaghi et al. 2021, sections 1.2 and 2.2; Vijayanarasimhan et al. 2014, section 3;
        Neyshabur, Srebro 2015, On symmetric and asymmetric LSHs for inner product search; Yan et
        al. 2018, Norm-ranging LSH for maximum inner product search.
    """

    spreads_classes: ClassVar[bool] = True

    def __init__(
        self,
        family: HashFamily | None = None,
        hashes_per_table: int = 6,
        num_tables: int = 50,
        first_period: float = 50,
        growth: float = 1.1,
        max_drift: float | None = None,
        similarity: str = "angle",
        length_ranges: int = 4,
        max_per_bucket: int = 256,
        seed: int = 0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.family = DWTAHash() if family is None else family
        if not isinstance(self.family, HashFamily):
            raise TypeError(f"family must be a HashFamily; got {family!r}")
        self.hashes_per_table = integer_argument("hashes_per_table", hashes_per_table, at_least=1)
        self.num_tables = integer_argument("num_tables", num_tables, at_least=1)
        self.first_period = number_argument("first_period", first_period, at_least=1)
        self.growth = number_argument("growth", growth, at_least=1)
        self.max_drift = max_drift
        if max_drift is not None:
            self.max_drift = number_argument("max_drift", max_drift, above=0)
        choice_argument("similarity", similarity, _SIMILARITIES)
        if similarity == "inner_product" and not isinstance(self.family, SimHash):
            raise ValueError(f"similarity='inner_product' must go with SimHash; got {family!r}")
        self.similarity = similarity
        self.length_ranges = integer_argument("length_ranges", length_ranges, at_least=1)
        if self.length_ranges > _MOST_RANGES:
            raise ValueError(f"length_ranges must be at most {_MOST_RANGES}; got {length_ranges}")
        self.max_per_bucket = integer_argument("max_per_bucket", max_per_bucket, at_least=1)
        self.seed = integer_argument("seed", seed, at_least=0)
        if self.num_buckets > MAX_BUCKETS:
            raise ValueError(
                f"hashes_per_table must give at most 2^24 buckets; got {self.hashes_per_table}, "
                f"with {self.num_ranges} * {self.family.num_values}^{self.hashes_per_table} "
                "(length_ranges * values^hashes_per_table) buckets"
            )

    @property
    def num_buckets(self) -> int:
        """The number of buckets of a table."""
        return self.num_ranges * self._buckets_of_range

    @property
    def tables(self) -> HashTables:
        """The variables that the ops work on."""
        return HashTables(self.entries, self.starts, self.touched_at, self.built_at)

    def check_shape(self, num_classes: int, width: int) -> None:
        """Raises a ValueError if D of W `[C, D]` is too small for the family."""
        self.family.functions(self._hashed_width(width), 1, np.random.default_rng(0))

    def build(self, input_shape: tuple[int, int]) -> None:
        """Draws the hash functions for W `[C, D]`, and allocates empty tables."""
        num_classes, width = input_shape
        self._shape = (num_classes, width)
        self._rows = self._rows or ClassRows(ALONE, num_classes, self.name)
        shard = self._rows.shard
        width = self._hashed_width(width)
        count = self.hashes_per_table * self.num_tables
        functions = self.family.functions(width, count, np.random.default_rng(self.seed))
        self._bins = functions.bins
        entries = _zeros(self.num_tables, num_classes)
        self.elements = self.add_derived("elements", functions.elements.astype(np.uint32))
        self.planes = self.add_derived("planes", functions.planes)
        self.entries = self.add_derived("entries", entries, shard, class_axis=1)
        self.starts = self.add_derived("starts", _zeros(self.num_tables, self.num_buckets + 1))
        self.touched_at = self.add_derived("touched_at", _zeros(num_classes), shard)
        self.built_at = self.add_derived("built_at", np.full(self.num_tables, 2**32 - 1, np.uint32))
        self.clock = self.add_derived("clock", np.zeros([], np.int32))
        self.radius = self.add_derived("radius", np.zeros([], np.float32))
        with tf.device(HOST):
            self.schedule = self.add_derived("schedule", first_schedule(self.first_period))
        self.built = True

    def weights_of(self, num_classes: int, width: int) -> list[Weight]:
        """As `Index`; without the hash functions, which are small."""
        sizes = num_classes, self.num_buckets + 1
        shapes = [(num_classes,), *((self.num_tables, size) for size in sizes)]
        return [Weight(shape, "uint32", "index") for shape in shapes]

    def workspace(self, num_classes: int) -> int:
        """As `Index`: the codes of all tables, and votes of threads."""
        return 4 * self.num_tables * num_classes + 9 * num_classes

    def rebuild(self, kernel: Any, bias: Any = None) -> None:
        """Builds all tables from W and b.

        Raises:
            tf.errors.InvalidArgumentError: W is not finite. The tables are unchanged then.
        """
        kernel = self.kernel_of(kernel, build=True)
        every = tf.range(kernel.shape[0], dtype=tf.int64)
        radius = self.radius.value
        if self.similarity == "inner_product":
            radius = longest_row(kernel, bias, every)
            radius = self._rows.workers.longest(radius, f"{self._rows.site}/radius")
        which = tf.constant([0, self.num_tables], tf.int64)
        self._update(kernel, bias, every, which, radius)

    def update(self, kernel: Any, bias: Any, touched: tf.Tensor) -> None:
        """Marks rows that a step changed, and updates the tables that are due.

        Raises:
            tf.errors.InvalidArgumentError: A changed row is not finite, or the tables are corrupt.
                The tables are unchanged then.
        """
        kernel = self.kernel_of(kernel)
        turn = Turn.of(self.schedule.value, self.num_tables)
        radius = self.radius.value
        if self.similarity == "inner_product":
            touched, radius = tf.cond(
                turn.begins_round,
                lambda: grown_radius(kernel, bias, touched, radius, self._rows),
                lambda: (touched, radius),
            )
        moved = self._update(kernel, bias, touched, turn.tables, radius)
        most = math.inf
        if self.max_drift is not None:
            most = self.max_drift * self.num_tables * self._rows.num_classes
        self.schedule.assign(turn.after(self._rows, moved, self.growth, self.first_period, most))

    def codes(self, vectors: tf.Tensor, implementation: str = "auto") -> tf.Tensor:
        """Returns the buckets of queries `[n, D]` in each table, `[n, L]`; -1: none.

        Raises:
            tf.errors.InvalidArgumentError: A vector is not finite.
        """
        vectors = self.hashed_queries(vectors)
        return hash_codes(
            vectors,
            self._functions(),
            self.num_tables,
            self.hashes_per_table,
            implementation=implementation,
        )

    def hashed_queries(self, vectors: tf.Tensor) -> tf.Tensor:
        """Returns the vectors that are hashed for queries `[n, D]`, float32."""
        vectors = tf.cast(vectors, tf.float32)
        if self.similarity == "angle":
            return vectors
        # (h, 1, 0), but zeros remain zeros.
        one = tf.cast(tf.reduce_any(vectors != 0, axis=1, keepdims=True), tf.float32)
        return tf.concat([vectors, one, tf.zeros_like(one)], axis=1)

    def candidates(
        self, queries: tf.Tensor, budget: int, seed: tf.Tensor, per_example: bool
    ) -> tf.Tensor:
        """Returns classes that share buckets with queries: see `bucket_candidates`.

        With several workers: classes of all, or with `per_example` classes whose rows are on this
        worker.

        Args:
            queries: `[N, D]`, or `[N, Q, D]` with Q queries per example; zeros find nothing. The
                same on all workers.
            budget: S, the number of classes to return.
            seed: `[2]` int32 or int64.
            per_example: Whether each example gets separate candidates, `[N, S]`, or all share them,
                `[S]`.
        """
        self.require_built()
        if len(queries.shape) == 2:
            codes = self.codes(queries)[:, tf.newaxis]
        else:
            shape = tf.shape(queries)
            codes = self.codes(tf.reshape(queries, [-1, queries.shape[-1]]))
            codes = tf.reshape(codes, [shape[0], shape[1], self.num_tables])
        order = BucketOrder.draw(self.num_tables, self._rows.num_classes, seed)
        is_whole = self._rows.shard.is_whole
        found = bucket_candidates(
            self.tables,
            codes,
            budget if is_whole else min(budget, self._rows.num_rows),
            order._replace(first_class=self._rows.shard.row_from(order.first_class)),
            per_example=per_example,
            max_per_bucket=self.max_per_bucket,
            num_ranges=self.num_ranges,
            gives_marks=not is_whole,
        )
        if per_example:
            return first_of_each(self._rows, found, budget, self.num_ranges * self.num_tables)
        return most_voted(self._rows, found, budget, order.first_class)

    def search(
        self,
        head: Any,
        hidden: tf.Tensor,
        k: int,
        *,
        num_found: int | None = None,
        with_partition: bool = False,
        allowed: ClassFilter | None = None,
    ) -> TopScores:
        """As `SearchIndex`: the best of the first `num_found` classes in the buckets of h.

        Default of `num_found`: min(max(1,000, 10 k), C).
        """
        self.check_built_for(head.kernel)
        most = self.most_found(k, num_found)
        is_of_head = getattr(head, "index", None) is self
        if not is_of_head:
            head.workers.refuse_several(
                "index must be that of the head, where its classes are spread over "
                f"{head.workers.size} workers; got another one"
            )
        else:
            self.build_once(head.kernel, head.bias)  # it may not have drawn candidates yet

        def find(hidden: tf.Tensor) -> tf.Tensor:
            return self.candidates(hidden, most, tf.constant(SEARCH_SEED), per_example=True)

        return head.best_found(hidden, find, k, allowed)

    def most_found(self, k: int, num_found: int | None) -> int:
        """Returns the largest number of classes that a search for the k best finds.

        Raises:
            ValueError: `num_found` is above C, or below k.
        """
        num_classes = self._rows.num_classes
        if num_found is None:
            return min(max(1000, 10 * k), num_classes)
        if num_found < k:
            raise ValueError(f"num_found must be at least k={k}; got {num_found}")
        at_most_classes("num_found", num_found, num_classes)
        return num_found

    def hashed_rows(self, kernel: Any, bias: Any = None) -> HashedRows:
        """Returns the function from classes to the vectors that are hashed."""
        biases = [] if bias is None else [bare_variable(bias)]
        return HashedRows(bare_variable(kernel), biases, radii(self.radius.value, self.num_radii))

    def health(self, kernel: Any, bias: Any = None) -> dict[str, tf.Tensor]:
        """Returns measures of the tables' quality, scalars in [0, 1].

        - `occupied`: share of the buckets with a class; small if H is too large for C;
        - `largest_bucket`: share of the classes in the fullest bucket; large if rows are similar.
          The last of several ranges of lengths, with short rows, is not counted;
        - `unreachable`: share of the classes that are missing even in the fullest table: rows of
        zeros;
        - `stale`: share of 64 classes per table whose rows now belong to another bucket; large if
          the period is too long.

        Cost: O(L (buckets + 64 D H L)). Arguments: as `rebuild`.
        """
        self.check_built_for(kernel)
        longer = max(self.num_ranges - 1, 1) * self._buckets_of_range
        rows, functions = self.hashed_rows(kernel, bias), self._functions()
        stale = share_that_moved(
            self.tables, rows, functions, self.hashes_per_table, self._buckets_of_range
        )
        return table_sizes(self.tables, longer) | {"stale": stale}

    def load_own_variables(self, store: Any) -> None:
        """As Keras. Tables over other rows than the present ones are reset."""
        if self._rows is None or self._rows.shard.is_whole:
            super().load_own_variables(store)
        else:
            self.start_anew()

    def get_config(self) -> dict[str, Any]:
        family = keras.saving.serialize_keras_object(self.family)
        arguments = {name: getattr(self, name) for name in _PLAIN_ARGUMENTS}
        return {**super().get_config(), "family": family, **arguments}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> HashIndex:
        family = keras.saving.deserialize_keras_object(config["family"])
        return cls(**{**config, "family": family})

    @property
    def num_radii(self) -> int:
        """The number of ranges of lengths; 0 by angle."""
        return self.length_ranges if self.similarity == "inner_product" else 0

    @property
    def num_ranges(self) -> int:
        """The number of ranges into which the buckets of a table are divided."""
        return max(self.num_radii, 1)

    @property
    def _buckets_of_range(self) -> int:
        return int(self.family.num_values**self.hashes_per_table)

    def _hashed_width(self, width: int) -> int:
        return width + 2 if self.similarity == "inner_product" else width

    def _functions(self) -> HashFunctions:
        return HashFunctions(signed(self.elements.value), self.planes.value, self._bins)

    def _update(
        self, kernel: tf.Variable, bias: Any, touched: tf.Tensor, which: Any, radius: tf.Tensor
    ) -> tf.Tensor:
        """Marks rows, and updates a range of tables; returns how many classes moved."""
        at_end = self.clock.value == tf.int32.max
        tf.cond(at_end, lambda: renumber(self.tables, self.clock), lambda: tf.constant(False))
        now = self.clock.value + 1
        moved = update_tables(
            kernel,
            bias,
            self.tables,
            self._functions(),
            self.hashes_per_table,
            touched,
            now,
            which,
            radii(radius, self.num_radii),
        )
        with tf.control_dependencies([moved]):  # raises for values that are not finite
            self.clock.assign(now)
            self.radius.assign(radius)
        return moved


def _zeros(*shape: int) -> np.ndarray:
    return filled(shape, np.uint32)
