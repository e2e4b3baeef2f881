# SPDX-License-Identifier: Apache-2.0
"""tf_idf: weights of features by how rare they are among the training examples."""

from __future__ import annotations

import dataclasses

import numpy as np

from tfx_largeout.arguments import flag_argument
from tfx_largeout.datasets.sparse_examples import SparseExamples, require_like, rows_of_entries


def tf_idf(
    train: SparseExamples, *others: SparseExamples, log: bool = False
) -> tuple[SparseExamples, ...]:
    """Weights each feature by its inverse document frequency, and scales rows to norm 1.

    `x_f <- x_f idf_f / |x idf|_2` with `idf_f = ln((1 + N) / (1 + df_f)) + 1`, where `N` is the
    number of training examples and `df_f` the number of examples with a value of feature f other
    than 0. The others are weighted with the frequencies of `train`.

    Cost: O(number of features in all examples).

    Args:
        train: The examples for the frequencies; values are counts of occurrences.
        *others: Further examples with the same features and labels, such as the test set.
        log: Whether to replace `x_f` by `sign(x_f) ln(1 + |x_f|)` first: a word that occurs ten
            times is less informative than ten words.

    Returns:
        New containers, `train` first and then `others` in order. A row without features, or with
        only zeros, does not change.

    Raises:
        ValueError: `others` have another number of features or labels than `train`; or `log` is not
            a flag.

    References:
        Spärck Jones 1972, A statistical interpretation of term specificity and its application
        in retrieval. The frequencies are smoothed as if one more example had every feature.
    """
    log = flag_argument("log", log)
    require_like(train, others, "num_features", "num_labels")
    there = train.feature_ids[train.feature_values != 0]
    frequency = np.bincount(there, minlength=train.num_features)
    idf = np.log((1 + train.num_examples) / (1 + frequency)) + 1
    return tuple(_weight(examples, idf, log) for examples in (train, *others))


def _weight(examples: SparseExamples, idf: np.ndarray, log: bool) -> SparseExamples:
    values = examples.feature_values
    if log:
        values = np.copysign(np.log1p(np.abs(values)), values)
    values = values * idf[examples.feature_ids]
    row = rows_of_entries(examples.feature_splits)
    norms = np.sqrt(np.bincount(row, weights=values**2, minlength=examples.num_examples))
    norms[norms == 0] = 1
    return dataclasses.replace(examples, feature_values=(values / norms[row]).astype(np.float32))
