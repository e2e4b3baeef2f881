# SPDX-License-Identifier: Apache-2.0
"""How an exported model finds the best classes of hidden activations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tfx_largeout.arguments import at_most_classes
from tfx_largeout.class_filter import ClassFilter
from tfx_largeout.heads.base import Head
from tfx_largeout.heads.factored_weights import FactoredWeights
from tfx_largeout.heads.hierarchical_softmax import HierarchicalSoftmaxHead
from tfx_largeout.heads.kernel_head import KernelHead
from tfx_largeout.indexes import HashIndex
from tfx_largeout.indexes.row_lists import default_num_lists, default_num_probed
from tfx_largeout.layers.top_k import exact_best, is_of, with_rows
from tfx_largeout.ops.rows.variable_rows import bare_variable
from tfx_largeout.serving.stored_indexes import (
    HashLookup,
    StoredLists,
    check_tables,
    store_lists,
)
from tfx_largeout.serving.stored_rows import (
    StoredColumns,
    check_finite_rows,
    scored_again,
    store_columns,
    store_rows,
    variable,
)
from tfx_largeout.statistics import TopScores

_SCORED_AGAIN = 4  # times k


@dataclass(frozen=True)
class SearchOptions:
    """The arguments of `export` about the search, under the same names."""

    k: int
    index: str | HashIndex | None
    activation: str | None
    rows: str
    rescore: bool
    num_lists: int | None
    num_probed: int | None
    num_found: int | None
    seed: int
    temperature: float = 1.0


class Searcher(NamedTuple):
    """The k best classes of h, in TensorFlow's ops."""

    # Takes h [N, D], num_probed, and the filter.
    best: Callable[..., TopScores]
    most_probed: int | None = None  # the number of lists or tables; None: no index
    num_probed: int | None = None  # the default number to read
    variables: Sequence[tf.Variable] = ()  # read by requests and never changed


def _tree_searcher(head: HierarchicalSoftmaxHead, options: SearchOptions) -> Searcher:
    """The search of a tree, whose log-probabilities are not products of W and h."""

    def best(
        hidden: tf.Tensor, _: tf.Tensor | None, allowed: ClassFilter | None = None
    ) -> TopScores:
        for weight in (weight for table in head.tables.values() for weight in table):
            if weight is not None:  # a weight read only by its handle would not be written
                bare_variable(weight).read_value()
        top = exact_best(head, hidden, options.k, allowed)
        scores, sums = (tf.cast(each, tf.float32) for each in (top.scores, top.log_partition))
        return TopScores(scores, top.ids, sums if options.activation == "softmax" else None)

    return Searcher(best)


def _linear_searcher(scores: LinearScores, options: SearchOptions) -> Searcher:
    kernel, bias, index = scores.kernel, scores.bias, options.index
    num_classes = int(kernel.shape[0])
    most: int | None = None
    default: int | None = None
    if isinstance(index, HashIndex):
        most = default = index.num_tables
    elif index is not None:
        most = options.num_lists or default_num_lists(num_classes)
        default = default_num_probed(most)
    num_probed = options.num_probed or default
    if most is not None and num_probed is not None and num_probed > most:
        what = "tables" if isinstance(index, HashIndex) else "lists"
        raise ValueError(
            f"num_probed must be at most the number of {what}, {most}; got {num_probed}"
        )
    parts: StoredColumns | StoredLists | HashLookup
    if isinstance(index, HashIndex):
        rows = store_rows(kernel, bias, options.rows)
        parts = HashLookup(rows, index, index.most_found(options.k, options.num_found))
    elif most is not None:
        parts = store_lists(kernel, bias, options.rows, most, options.seed)
    else:
        parts = store_columns(kernel, bias, options.rows)
    exact = store_rows(kernel, bias, "float32") if options.rescore else None
    num_best = min(_SCORED_AGAIN * options.k, num_classes) if options.rescore else options.k

    def best(
        hidden: tf.Tensor, num_probed: tf.Tensor | None, allowed: ClassFilter | None = None
    ) -> TopScores:
        queries, shift = scores.query(hidden)
        top = parts.best(queries, num_best, options.activation == "softmax", num_probed, allowed)
        if exact is not None:
            top = scored_again(queries, exact, top, options.k)
        sums = None if top.log_partition is None else top.log_partition + shift
        return TopScores(top.scores + shift[:, tf.newaxis], top.ids, sums)

    more = [] if exact is None else exact.variables
    return Searcher(best, most, num_probed, [*parts.variables, *more])


def searcher_of(head: Head, options: SearchOptions) -> Searcher:
    """Returns the searcher for the best classes of a head. Errors: as `export`."""
    for name, value in (("k", options.k), ("num_lists", options.num_lists)):
        if value is not None:
            at_most_classes(name, value, head.num_classes)
    scores = linear_scores(head, options.temperature)
    if scores is not None:
        check_finite_rows(scores.kernel, scores.bias)
        if isinstance(options.index, HashIndex):
            _check_index(head, options.index)
        return _linear_searcher(scores, options)
    if not isinstance(head, HierarchicalSoftmaxHead):
        raise TypeError(f"the head must have rows W, or be a tree; got {type(head).__name__}")
    if options.index is not None or options.rows != "float32":
        raise ValueError(
            f"index must be None and rows 'float32' for a {type(head).__name__}, whose scores are "
            f"no products of rows; got index={options.index!r}, rows={options.rows!r}"
        )
    if options.temperature != 1:
        raise TypeError(
            f"temperature must be 1 for a {type(head).__name__}, whose scores come from a tree; "
            f"got {options.temperature}"
        )
    return _tree_searcher(head, options)


def _check_index(head: Head, index: HashIndex) -> None:
    owner = with_rows(head)
    index.check_built_for(owner.kernel)
    if is_of(index, owner):
        index.build_once(owner.kernel, owner.bias)  # it may not have drawn candidates yet
    check_tables(index)


# For heads of this package. A subclass with its own logits may compute anything.
_LINEAR = (FactoredWeights.flat_logits, KernelHead.flat_logits)


class LinearScores(NamedTuple):
    """The logits o_c = row_c . q + bias_c + shift, where q and the shift depend on h."""

    kernel: tf.Variable
    bias: tf.Variable | None
    query: Callable[[tf.Tensor], tuple[tf.Tensor, tf.Tensor]]  # from h to q and the shift, float32


def linear_scores(head: Head, temperature: float) -> LinearScores | None:
    """Returns the rows of a head; None if its logits are not such products.

    With a temperature, q, biases and shift are divided by it.
    """
    if not isinstance(head, (FactoredWeights, KernelHead)):
        return None
    if type(head).flat_logits not in _LINEAR:
        raise TypeError(
            "head must have the logits W h + b for export; got one with a custom flat_logits, "
            f"a {type(head).__name__}"
        )

    def query(hidden: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        if isinstance(head, FactoredWeights):
            queries, shift = head.coordinates(hidden)
            queries, shift = (x / tf.cast(temperature, x.dtype) for x in (queries, shift))
            return tf.cast(queries, tf.float32), tf.cast(shift, tf.float32)
        queries = tf.cast(hidden, tf.float32) / temperature
        return queries, tf.zeros_like(queries[:, 0])

    if isinstance(head, FactoredWeights):
        head.settle()
        return LinearScores(head.state.v.value, None, query)
    head.refuse_soft_cap("export")
    bias = None if head.bias is None else bare_variable(head.bias)
    if bias is not None and temperature != 1:
        bias = variable(bias.numpy().astype("float32") / np.float32(temperature))
    return LinearScores(bare_variable(head.kernel), bias, query)
