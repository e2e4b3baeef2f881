# SPDX-License-Identifier: Apache-2.0
"""Statistics of all logits, in float64, straight from their definitions."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Statistics(NamedTuple):
    logsumexp: np.ndarray
    target_logits: np.ndarray
    target_ranks: np.ndarray
    top_scores: np.ndarray
    top_ids: np.ndarray


def streamed_logits(hidden, kernel, bias, labels, k) -> Statistics:
    with np.errstate(invalid="ignore"):
        logits = np.asarray(hidden, np.float64) @ np.asarray(kernel, np.float64).T
    if bias is not None:
        logits = logits + np.asarray(bias, np.float64)
    return statistics(logits, labels, k)


def statistics(logits, labels, k) -> Statistics:
    # Best first: by falling logit, then by rising id; NaN counts as minus infinity.
    keys = np.where(np.isnan(logits), -np.inf, logits)
    order = np.argsort(-keys, axis=1, kind="stable")
    rank_of_class = np.argsort(order, axis=1)
    padding = labels < 0
    columns = np.where(padding, 0, labels)
    if logits.shape[1] == 0:
        target_logits = np.zeros(labels.shape)
        target_ranks = np.full(labels.shape, -1)
    else:
        target_logits = np.where(padding, 0, np.take_along_axis(logits, columns, 1))
        target_ranks = np.where(padding, -1, np.take_along_axis(rank_of_class, columns, 1))
    return Statistics(
        np.array([logsumexp(row) for row in logits]),
        target_logits,
        target_ranks,
        np.take_along_axis(logits, order[:, :k], 1),
        order[:, :k],
    )


def logsumexp(row) -> float:
    if np.isnan(row).any():
        return np.nan
    if row.size == 0 or np.max(row) == -np.inf:
        return -np.inf
    if np.max(row) == np.inf:
        return np.inf
    return np.max(row) + np.log(np.sum(np.exp(row - np.max(row))))
