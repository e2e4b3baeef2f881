# SPDX-License-Identifier: Apache-2.0
"""The softmax cross-entropy, in NumPy float64, from its definition."""

from __future__ import annotations

import numpy as np


def cross_entropy(hidden, kernel, bias, label_lists):
    """Returns [N]: -sum_c t_c log softmax(W h + b)_c, t spread evenly over each row's labels."""
    logits = np.asarray(hidden, np.float64) @ np.asarray(kernel, np.float64).T
    if bias is not None:
        logits = logits + np.asarray(bias, np.float64)
    losses = []
    for row, labels in zip(logits, label_lists, strict=True):
        shifted = np.exp(row - row.max())
        log_probabilities = np.log(shifted / shifted.sum())
        losses.append(-sum(log_probabilities[c] for c in labels) / len(labels))
    return np.array(losses)


def top_k(hidden, kernel, bias, k):
    """Returns ids [N, k] by falling logit, ties by lower id."""
    logits = np.asarray(hidden, np.float64) @ np.asarray(kernel, np.float64).T
    if bias is not None:
        logits = logits + np.asarray(bias, np.float64)
    return np.argsort(-logits, axis=-1, kind="stable")[:, :k]
