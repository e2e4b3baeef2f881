# SPDX-License-Identifier: Apache-2.0
"""The softmax of s cos(theta) with margins of the labels, in NumPy float64, from angles."""

from __future__ import annotations

import numpy as np


def directions(rows):
    """Returns rows of norm 1; rows of zeros don't change."""
    rows = np.asarray(rows, np.float64)
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows / np.where(norms > 0, norms, 1)


def cosines(hidden, kernel):
    return directions(hidden) @ directions(kernel).T


def psi(cosine, cosine_margin, angular_margin):
    """Returns the replacement of the label's cos(theta), and its derivative."""
    theta = np.arccos(np.clip(cosine, -1, 1))
    if theta <= np.pi - angular_margin:
        if angular_margin == 0:
            return cosine - cosine_margin, 1.0
        slope = np.sin(theta + angular_margin) / np.sin(theta)
        return np.cos(theta + angular_margin) - cosine_margin, slope
    return cosine - angular_margin * np.sin(angular_margin) - cosine_margin, 1.0


def loss_and_gradient(cosine, label_lists, scale, cosine_margin=0.0, angular_margin=0.0):
    """Returns the loss of each example, and its gradients by all cosines, `[N, C]`, and by s.

    It is the cross-entropy of the labels, evenly, in the softmax of the logits with margins.
    """
    losses, gradients, by_scale = [], [], []
    for row, labels in zip(np.asarray(cosine, np.float64), label_lists, strict=True):
        logits, slopes = scale * row, np.ones(len(row))
        for y in labels:
            value, slopes[y] = psi(row[y], cosine_margin, angular_margin)
            logits[y] = scale * value
        log_z = logits.max() + np.log(np.exp(logits - logits.max()).sum())
        target = np.zeros(len(row))
        target[list(labels)] = 1 / len(labels)
        losses.append(log_z - target @ logits)
        by_logit = np.exp(logits - log_z) - target
        gradients.append(scale * slopes * by_logit)
        by_scale.append(by_logit @ logits / scale)
    return np.array(losses), np.array(gradients), np.array(by_scale)


def through_norms(rows, gradient):
    """Returns the gradient by rows, of that by their directions."""
    rows = np.asarray(rows, np.float64)
    unit = directions(rows)
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    tangent = gradient - unit * (unit * gradient).sum(axis=1, keepdims=True)
    return tangent / np.where(norms > 0, norms, 1)


def gradients(hidden, kernel, label_lists, weights, scale, *margins):
    """Returns the weighted sum of losses, and its gradients by h, by W and by s."""
    of_rows, of_hidden = directions(kernel), directions(hidden)
    cosine = of_hidden @ of_rows.T
    losses, by_cosine, by_scale = loss_and_gradient(cosine, label_lists, scale, *margins)
    by_cosine *= np.asarray(weights, np.float64)[:, np.newaxis]
    return (
        weights @ losses,
        through_norms(hidden, by_cosine @ of_rows),
        through_norms(kernel, by_cosine.T @ of_hidden),
        weights @ by_scale,
    )
