# SPDX-License-Identifier: Apache-2.0
"""What samplers claim, in NumPy float64, from the definitions; draws in the plainest way."""

from __future__ import annotations

import numpy as np


def uniform(num_classes):
    return np.full(num_classes, 1 / num_classes)


def log_uniform(num_classes):
    c = np.arange(num_classes)
    return (np.log(c + 2) - np.log(c + 1)) / np.log(num_classes + 1)


def unigram(counts, power=1.0):
    weights = np.asarray(counts, np.float64) ** power
    return weights / weights.sum()


def bernoulli_alpha(counts, expected):
    """alpha with sum_c f_c^alpha = expected, by bisection."""
    frequency = unigram(counts)
    low, high = 0.0, 1.0
    while (frequency**high).sum() > expected:
        high *= 2
    for _ in range(200):
        middle = (low + high) / 2
        if (frequency**middle).sum() > expected:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def bernoulli(counts, expected):
    return unigram(counts) ** bernoulli_alpha(counts, expected)


def distinct_arrivals(rng, probabilities, num_sampled, draws, tries=400):
    """Classes arrive one by one, Exp(1) apart: the first S different, and when the next comes."""
    classes = rng.choice(probabilities.size, (draws, tries), p=probabilities)
    times = rng.exponential(size=(draws, tries)).cumsum(axis=1)
    first = np.stack(
        [np.where(classes == c, times, np.inf).min(axis=1) for c in range(probabilities.size)],
        axis=1,
    )
    order = first.argsort(axis=1)[:, : num_sampled + 1]
    return order[:, :-1], np.take_along_axis(first, order[:, -1:], axis=1)[:, 0]
