# SPDX-License-Identifier: Apache-2.0
"""The inverted multi-index of Chen et al. 2025, in NumPy float64, from its definition."""

from __future__ import annotations

import numpy as np


def parts(vectors, quantization):
    """The parts of vectors for each codebook: halves, or all."""
    if quantization == "rq":
        return vectors, vectors
    half = (vectors.shape[1] + 1) // 2
    return vectors[:, :half], vectors[:, half:]


def nearest(vectors, words):
    distances = ((vectors[:, None, :] - words[None]) ** 2).sum(axis=2)
    return distances.argmin(axis=1), distances.min(axis=1)


def codes(rows, first_words, second_words, quantization):
    """k1 Q + k2 for each row."""
    first, second = parts(rows, quantization)
    k1, _ = nearest(first, first_words)
    if quantization == "rq":
        second = rows - first_words[k1]
    k2, _ = nearest(second, second_words)
    return k1 * len(first_words) + k2


def means(vectors, words):
    """An iteration of k-means: a word without a vector becomes one of those farthest off."""
    which, distances = nearest(vectors, words)
    farthest = list(np.argsort(-distances, kind="stable"))
    return np.stack(
        [
            vectors[which == k].mean(axis=0) if (which == k).any() else vectors[farthest.pop(0)]
            for k in range(len(words))
        ]
    )


def weights(bias=None, counts=None, power=1.0):
    """v_c in proportion to exp(b_c) n_c^power, the greatest 1."""
    log = 0.0 if bias is None else np.asarray(bias, np.float64)
    log = log + (0.0 if counts is None else power * np.log(np.asarray(counts, np.float64)))
    return np.exp(log - np.max(log))


def distribution(hidden, pairs, first_words, second_words, class_weights, quantization):
    """q(c|h) `[B, C]`: a softmax over all rows, each in place of its code words."""
    first, second = parts(np.asarray(hidden, np.float64), quantization)
    k1, k2 = np.divmod(pairs, len(first_words))
    logits = first @ first_words[k1].T + second @ second_words[k2].T + np.log(class_weights)
    q = np.exp(logits - logits.max(axis=1, keepdims=True))
    return q / q.sum(axis=1, keepdims=True)
