# SPDX-License-Identifier: Apache-2.0
"""The softmax cross-entropy, in NumPy float64, from its definition."""

from __future__ import annotations

import numpy as np


def logits(hidden, kernel, bias):
    """Returns W h + b, [N, C]."""
    result = np.asarray(hidden, np.float64) @ np.asarray(kernel, np.float64).T
    return result if bias is None else result + np.asarray(bias, np.float64)


def cross_entropy(hidden, kernel, bias, label_lists):
    """Returns [N]: -sum_c t_c log softmax(W h + b)_c, t spread evenly over each row's labels."""
    losses = []
    for row, labels in zip(logits(hidden, kernel, bias), label_lists, strict=True):
        shifted = np.exp(row - row.max())
        log_probabilities = np.log(shifted / shifted.sum())
        losses.append(-sum(log_probabilities[c] for c in labels) / len(labels))
    return np.array(losses)


def top_k(scores, k):
    """Returns ids [N, k] by falling score [N, C], ties by lower id."""
    return np.argsort(-scores, axis=-1, kind="stable")[:, :k]
