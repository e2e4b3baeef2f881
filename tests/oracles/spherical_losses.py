# SPDX-License-Identifier: Apache-2.0
"""The losses of the spherical family, in NumPy float64, from all logits."""

from __future__ import annotations

import numpy as np
from oracles.softmax import logits as logits_of


def squared_error(hidden, kernel, bias, label_lists, target_value=1.0):
    logits = logits_of(hidden, kernel, bias)
    for row, labels in zip(logits, label_lists, strict=True):
        row[list(labels)] -= target_value
    return (logits**2).sum(axis=1)


def spherical_softmax(hidden, kernel, bias, label_lists, epsilon=1e-3):
    return _negative_log_likelihood(logits_of(hidden, kernel, bias) ** 2 + epsilon, label_lists)


def taylor_softmax(hidden, kernel, bias, label_lists):
    logits = logits_of(hidden, kernel, bias)
    return _negative_log_likelihood(1 + logits + logits**2 / 2, label_lists)


def z_loss(hidden, kernel, bias, label_lists, a=0.1, b=10.0):
    logits = logits_of(hidden, kernel, bias)
    scores = (logits - logits.mean(axis=1, keepdims=True)) / logits.std(axis=1, keepdims=True)
    values = np.log1p(np.exp(a * (b - scores))) / a
    return _mean_over_labels(values, label_lists)


def _negative_log_likelihood(scores, label_lists):
    probabilities = scores / scores.sum(axis=1, keepdims=True)
    return _mean_over_labels(-np.log(probabilities), label_lists)


def _mean_over_labels(values, label_lists):
    pairs = zip(values, label_lists, strict=True)
    return np.array([row[list(labels)].mean() for row, labels in pairs])
