# SPDX-License-Identifier: Apache-2.0
"""How an exported model finds the best classes of hidden activations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import tensorflow as tf

from tfx_largeout.heads.base import Head
from tfx_largeout.heads.factored_weights import FactoredWeights
from tfx_largeout.heads.hierarchical_softmax import HierarchicalSoftmaxHead
from tfx_largeout.heads.kernel_head import KernelHead
from tfx_largeout.indexes import HashIndex
from tfx_largeout.indexes.row_lists import default_num_lists, default_num_probed
from tfx_largeout.layers.top_k import is_of, with_rows
from tfx_largeout.ops.rows.variable_rows import bare_variable
from tfx_largeout.serving.best_classes import Best, best_of_all, scored_again
from tfx_largeout.serving.hash_lookup import HashLookup, check_tables
from tfx_largeout.serving.stored_columns import StoredColumns
from tfx_largeout.serving.stored_lists import StoredLists, store_lists
from tfx_largeout.serving.stored_rows import check_finite_rows, store_rows

_SCORED_AGAIN = 4  # times k


@dataclass(frozen=True)
class SearchOptions:
    """What is to be found, and how, as the arguments of `export` of the same names say."""

    k: int
    index: str | HashIndex | None
    activation: str | None
    rows: str
    rescore: bool
    num_lists: int | None
    num_probed: int | None
    num_found: int | None
    seed: int


class Searcher:
    """The k best classes of h, in TensorFlow's own ops.

    Attributes:
        most_probed: How many lists or tables there are; None: all classes are looked at.
        num_probed: How many of them are looked into, if nothing is said.
    """

    most_probed: int | None = None
    num_probed: int | None = None

    def best(self, hidden: tf.Tensor, num_probed: tf.Tensor | None) -> Best:
        """Returns the k best classes of h `[N, D]`."""
        raise NotImplementedError


class _TreeSearcher(Searcher):
    """The search of a tree, whose log-probabilities are no products of W and h."""

    def __init__(self, head: HierarchicalSoftmaxHead, options: SearchOptions) -> None:
        self._head, self._options = head, options

    def best(self, hidden: tf.Tensor, num_probed: tf.Tensor | None) -> Best:
        for weight in (weight for table in self._head.tables.values() for weight in table):
            if weight is not None:  # what is read by its handle alone would not be written
                bare_variable(weight).read_value()
        top = self._head.top_k(hidden, self._options.k)
        best = [tf.cast(each, tf.float32) for each in (top.scores, top.log_partition)]
        return Best(best[0], top.ids, best[1] if self._options.activation == "softmax" else None)


class _LinearSearcher(Searcher):
    def __init__(self, scores: LinearScores, options: SearchOptions) -> None:
        self._query, self._options = scores.query, options
        self._parts: StoredLists | HashLookup | None = None
        kernel, bias = scores.kernel, scores.bias
        num_classes = int(kernel.shape[0])
        if options.index is None:
            self._columns = StoredColumns(store_rows(kernel, bias, options.rows))
        elif isinstance(options.index, HashIndex):
            self._probe(options.index.num_tables, options.index.num_tables, "tables")
            rows = store_rows(kernel, bias, options.rows)
            num_found = options.index.most_found(options.k, options.num_found)
            self._parts = HashLookup(rows, options.index, num_found)
        else:
            num_lists = options.num_lists or default_num_lists(num_classes)
            self._probe(num_lists, default_num_probed(num_lists), "lists")
            self._parts = store_lists(kernel, bias, options.rows, num_lists, options.seed)
        self._exact = store_rows(kernel, bias, "float32") if options.rescore else None
        self._num_best = options.k
        if options.rescore:
            self._num_best = min(_SCORED_AGAIN * options.k, num_classes)

    def _probe(self, most: int, default: int, what: str) -> None:
        self.most_probed, self.num_probed = most, self._options.num_probed or default
        if self.num_probed > most:
            raise ValueError(
                f"num_probed must be at most the number of {what}, {most}; got {self.num_probed}"
            )

    def best(self, hidden: tf.Tensor, num_probed: tf.Tensor | None) -> Best:
        queries, shift = self._query(hidden)
        log_partition = self._options.activation == "softmax"
        if self._parts is None:
            best = best_of_all(queries, self._columns, self._num_best, log_partition)
        else:
            best = self._parts.best(queries, self._num_best, log_partition, num_probed)
        if self._exact is not None:
            best = scored_again(queries, self._exact, best, self._options.k)
        sums = None if best.log_partition is None else best.log_partition + shift
        return Best(best.scores + shift[:, tf.newaxis], best.ids, sums)


def searcher_of(head: Head, options: SearchOptions) -> Searcher:
    """Returns how the best classes of a head are found.

    Raises:
        TypeError: The head is of a kind that can't be exported, or has no W for the index.
        ValueError: The options are not for this head; W or b have a NaN or an infinity; the index
            was built for a W of another shape, or its tables are corrupt.
        RuntimeError: The index was not built.
    """
    for name, value in (("k", options.k), ("num_lists", options.num_lists)):
        if value is not None and value > head.num_classes:
            raise ValueError(f"{name} must be at most num_classes={head.num_classes}; got {value}")
    scores = linear_scores(head)
    if scores is not None:
        check_finite_rows(scores.kernel, scores.bias)
        if isinstance(options.index, HashIndex):
            _check_index(head, options.index)
        return _LinearSearcher(scores, options)
    if not isinstance(head, HierarchicalSoftmaxHead):
        raise TypeError(f"the head must have rows W, or be a tree; got {type(head).__name__}")
    if options.index is not None or options.rows != "float32":
        raise ValueError(
            f"index must be None and rows 'float32' for a {type(head).__name__}, whose scores are "
            f"no products of rows; got index={options.index!r}, rows={options.rows!r}"
        )
    return _TreeSearcher(head, options)


def _check_index(head: Head, index: HashIndex) -> None:
    owner = with_rows(head)
    index.check_built_for(owner.kernel)
    if is_of(index, owner):
        index.build_once(owner.kernel, owner.bias)  # it has perhaps not drawn candidates yet
    check_tables(index)


# Of the heads of this package. A subclass with its own may compute anything.
_LINEAR = (FactoredWeights.flat_logits, KernelHead.flat_logits)


class LinearScores(NamedTuple):
    """The logits o_c = row_c . q + bias_c + shift, where q and the shift follow from h.

    Attributes:
        kernel: `[C, D]`, the rows.
        bias: `[C]`, or None.
        query: Returns q `[N, D]` and the shift `[N]`, both float32, of h `[N, D]`.
    """

    kernel: tf.Variable
    bias: tf.Variable | None
    query: Callable[[tf.Tensor], tuple[tf.Tensor, tf.Tensor]]


def linear_scores(head: Head) -> LinearScores | None:
    """Returns the rows of a head; None for one whose logits are no such products.

    Raises:
        TypeError: The head has rows, and logits that a class outside of this package computes.
    """
    if isinstance(head, (FactoredWeights, KernelHead)) and type(head).flat_logits not in _LINEAR:
        raise TypeError(
            "head must have the logits W h + b for export; got one with a flat_logits of its own, "
            f"a {type(head).__name__}"
        )
    if isinstance(head, FactoredWeights):
        head.settle()
        return LinearScores(head.state.v.value, None, lambda h: _coordinates(head, h))
    if isinstance(head, KernelHead):
        head.refuse_soft_cap("export")
        bias = None if head.bias is None else bare_variable(head.bias)
        return LinearScores(bare_variable(head.kernel), bias, _as_it_is)
    return None


def _coordinates(head: FactoredWeights, hidden: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    queries, shift = head.coordinates(hidden)
    return tf.cast(queries, tf.float32), tf.cast(shift, tf.float32)


def _as_it_is(hidden: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    queries = tf.cast(hidden, tf.float32)
    return queries, tf.zeros_like(queries[:, 0])
