# SPDX-License-Identifier: Apache-2.0
"""The softmax cross-entropy, in NumPy float64, from its definition."""

from __future__ import annotations

import numpy as np


def logits(hidden, kernel, bias):
    """Returns W h + b, [N, C]."""
    result = np.asarray(hidden, np.float64) @ np.asarray(kernel, np.float64).T
    return result if bias is None else result + np.asarray(bias, np.float64)


def log_softmax(scores):
    shifted = scores - scores.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def targets(label_lists, num_classes, smoothing=0.0):
    """Returns [N, C]: uniform over each row's labels, with a share that is uniform over all."""
    result = np.full((len(label_lists), num_classes), smoothing / num_classes)
    for row, labels in zip(result, label_lists, strict=True):
        for c in labels:
            row[c] += (1 - smoothing) / len(labels)
    return result


def soft_targets(id_lists, probability_lists, num_classes, remaining="ignore"):
    """Returns [N, C]: the probabilities of ids; the rest of 1 is dropped, or spread."""
    result = np.zeros((len(id_lists), num_classes))
    for row, ids, probabilities in zip(result, id_lists, probability_lists, strict=True):
        others = np.setdiff1d(np.arange(num_classes), ids)
        if remaining == "spread" and len(ids) and others.size:
            row[others] = max(1 - np.sum(probabilities, dtype=np.float64), 0) / others.size
        row[np.asarray(ids, int)] = probabilities
    return result


def smoothed(targets, smoothing):
    """Returns targets [N, C] with a share that is uniform over all classes."""
    return (1 - smoothing) * targets + smoothing / targets.shape[1]


def cross_entropy_of(targets, hidden, kernel, bias):
    """Returns [N]: -sum_c t_c log softmax(W h + b)_c, and its gradients by h, W and b as a sum."""
    log_p = log_softmax(logits(hidden, kernel, bias))
    g = targets.sum(axis=1, keepdims=True) * np.exp(log_p) - targets
    by = g @ np.asarray(kernel, np.float64), g.T @ np.asarray(hidden, np.float64), g.sum(axis=0)
    return -(targets * log_p).sum(axis=1), by


def cross_entropy(hidden, kernel, bias, label_lists, smoothing=0.0):
    """Returns [N]: -sum_c t_c log softmax(W h + b)_c, t as `targets`."""
    log_p = log_softmax(logits(hidden, kernel, bias))
    return -(targets(label_lists, log_p.shape[1], smoothing) * log_p).sum(axis=1)


def gradients(hidden, kernel, bias, label_lists, weights, smoothing=0.0):
    """Returns the gradients of the weighted sum of `cross_entropy` by h, W and b."""
    p = np.exp(log_softmax(logits(hidden, kernel, bias)))
    g = np.asarray(weights, np.float64)[:, np.newaxis] * (
        p - targets(label_lists, p.shape[1], smoothing)
    )
    return g @ np.asarray(kernel, np.float64), g.T @ np.asarray(hidden, np.float64), g.sum(axis=0)


def top_k(scores, k):
    """Returns ids [N, k] by falling score [N, C], ties by lower id."""
    return np.argsort(-scores, axis=-1, kind="stable")[:, :k]
