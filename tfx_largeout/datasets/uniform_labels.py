# SPDX-License-Identifier: Apache-2.0
"""uniform_labels: a variant of a data set in which labels are about equally frequent."""

from __future__ import annotations

import dataclasses

import numpy as np

from tfx_largeout.arguments import integer_argument
from tfx_largeout.datasets.sparse_examples import SparseExamples, require_like, rows_of_entries


def uniform_labels(
    train: SparseExamples,
    *others: SparseExamples,
    num_labels: int,
    max_count: int | None = None,
    seed: int = 0,
) -> tuple[SparseExamples, ...]:
    """Keeps the most frequent labels and samples them down to a common frequency.

    Let `n_l` be the number of training examples with label l.

    1. The `num_labels` labels with the largest `n_l` are kept (ties: the lower id).
    2. The training examples are shuffled. Each label is kept in the first `max_count` of its
       examples and removed from the others, so it occurs `min(n_l, max_count)` times.
    3. Examples without a label are removed. Labels are renumbered in their old order.

    By default `max_count` is the frequency of the rarest kept label: then every label occurs
    equally often. `others` get the same labels, but are not sampled down.

    Cost: O(n log n) time for n label occurrences.

    Args:
        train: The examples for the frequencies.
        *others: Further examples with the same labels, such as the test set.
        num_labels: The number of labels to keep; 158,114 for Amazon-670K, as in the paper's
            Amazon-Uniform.
        max_count: The largest number of training examples per label. Default: see above.
        seed: The seed of the random order.

    Returns:
        New containers, `train` first and then `others` in order, each with `num_labels` labels.

    Raises:
        ValueError: `num_labels`, `max_count` or `seed` is not an integer or out of range, a label
            to keep never occurs in `train`, or `others` have another number of labels than `train`.

    Deviations:
        The paper says 'down sampling frequent classes' and gives only the resulting sizes. It does
        not say which labels are kept, the common frequency, whether a frequent label loses whole
        examples or, as here, is removed from their label sets (so it seems absent from these
        examples, but the frequency is exact), and how the test set is changed. So the numbers of
        examples can differ from the paper's.

    References:
        Daghaghi, Medini, Meisburger, Chen, Zhao, Shrivastava 2021, A tale of two efficient and
        informative negative sampling distributions, section 3.5 and table 1.
    """
    counts = train.label_counts()
    num_labels = integer_argument("num_labels", num_labels, at_least=1)
    seed = integer_argument("seed", seed, at_least=0)
    if num_labels > np.count_nonzero(counts):
        raise ValueError(
            "num_labels must be at most the number of labels that occur in train, "
            f"{np.count_nonzero(counts)}; got {num_labels}"
        )
    kept = np.sort(np.argsort(-counts, kind="stable")[:num_labels])
    if max_count is None:
        max_count = int(counts[kept].min())
    max_count = integer_argument("max_count", max_count, at_least=1)
    require_like(train, others, "num_labels")
    new_ids = np.full(train.num_labels, -1, np.int64)
    new_ids[kept] = np.arange(num_labels)
    stays = (new_ids[train.label_ids] >= 0) & _among_first(train, max_count, seed)
    return (
        _relabel(train, stays, new_ids, num_labels),
        *(
            _relabel(examples, new_ids[examples.label_ids] >= 0, new_ids, num_labels)
            for examples in others
        ),
    )


def _among_first(examples: SparseExamples, max_count: int, seed: int) -> np.ndarray:
    """Returns whether each occurrence is among the first `max_count` of its label: `[n]` bool."""
    place = np.random.default_rng(seed).permutation(examples.num_examples)
    order = np.lexsort((place[rows_of_entries(examples.label_splits)], examples.label_ids))
    sorted_labels = examples.label_ids[order]
    rank = np.arange(len(order)) - np.searchsorted(sorted_labels, sorted_labels)
    among_first = np.empty(len(order), bool)
    among_first[order] = rank < max_count
    return among_first


def _relabel(
    examples: SparseExamples, stays: np.ndarray, new_ids: np.ndarray, num_labels: int
) -> SparseExamples:
    """The examples with only the kept occurrences, without examples that lose all labels."""
    rows = rows_of_entries(examples.label_splits)
    lengths = np.bincount(rows[stays], minlength=examples.num_examples)
    relabelled = dataclasses.replace(
        examples,
        label_splits=np.concatenate([[0], np.cumsum(lengths)]),
        label_ids=new_ids[examples.label_ids[stays]],
        num_labels=num_labels,
    )
    return relabelled.take(np.flatnonzero(lengths))
