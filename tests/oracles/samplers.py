# SPDX-License-Identifier: Apache-2.0
"""Expected counts of samplers in NumPy float64, from the definitions; simple draws."""

from __future__ import annotations

import math

import numpy as np


def uniform(num_classes):
    return np.full(num_classes, 1 / num_classes)


def log_uniform(num_classes):
    c = np.arange(num_classes)
    return (np.log(c + 2) - np.log(c + 1)) / np.log(num_classes + 1)


def unigram(counts, power=1.0):
    weights = np.asarray(counts, np.float64) ** power
    return weights / weights.sum()


def softmax(logits):
    weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


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
    """Classes are drawn one by one: the first S different, and the tries until the next one."""
    classes = rng.choice(probabilities.size, (draws, tries), p=probabilities)
    first = np.stack(
        [
            np.where((classes == c).any(axis=1), (classes == c).argmax(axis=1), tries)
            for c in range(probabilities.size)
        ],
        axis=1,
    )
    order = first.argsort(axis=1)[:, : num_sampled + 1]
    return order[:, :-1], np.take_along_axis(first, order[:, -1:], axis=1)[:, 0] + 1


def expected_count(probability, tries):
    """1 / E = the mean of 1 / (1 - exp(-q tau)) over tau ~ Gamma(T, 1), by quadrature."""
    width = 12 * math.sqrt(tries)
    tau = np.linspace(max(tries - width, 0), tries + width + 40, 400_001)[1:]
    density = np.exp((tries - 1) * np.log(tau) - tau - math.lgamma(tries))
    weight = 1 / -np.expm1(-probability * tau)
    return 1 / (np.sum(density * weight) * (tau[1] - tau[0]))


def label_intervals(batches, num_classes, decay):
    """Yi and others 2019, algorithm 2: B of each class after each of the batches of labels.

    With a = max(decay, 1/n) at the n-th occurrence, instead of a fixed a; step 1 is the first.
    Classes that were never a label have B = 0.
    """
    last, interval, appearances = (np.zeros(num_classes) for _ in range(3))
    after = []
    for step, batch in enumerate(batches, 1):
        for label in set(batch):
            appearances[label] += 1
            share = max(decay, 1 / appearances[label])
            interval[label] = (1 - share) * interval[label] + share * (step - last[label])
            last[label] = step
        after.append(interval.copy())
    return after
