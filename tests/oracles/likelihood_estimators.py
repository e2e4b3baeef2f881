# SPDX-License-Identifier: Apache-2.0
"""Barber and Botev's estimators for one example, in NumPy float64, by their equations.

Equation numbers are from the paper. Sums of exponentials are computed in the log domain, because
logits of 10,000 are tested, too; nothing else is rearranged. `over_labels` combines the losses of
the labels; by default their mean.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Example(NamedTuple):
    """Labels and candidates of one example, without padding.

    Attributes:
        true_logits: `[K]`, o of the labels.
        true_expected: `[K]`, E of the labels.
        logits: `[S]`, o of the candidates.
        expected: `[S]`, E of the candidates.
        hits: `[S]` bool, whether the candidate is a label.
        log_partition: z of noise-contrastive estimation.
        num_classes: C.
    """

    true_logits: np.ndarray
    true_expected: np.ndarray
    logits: np.ndarray
    expected: np.ndarray
    hits: np.ndarray
    log_partition: float
    num_classes: int


def log_sum(values):
    return np.logaddexp.reduce(np.asarray(values, np.float64))


def log_sigmoid(value):
    return -np.logaddexp(0, -value)


def negatives(example):
    """o and E of the candidates that are not labels."""
    return example.logits[~example.hits], example.expected[~example.hits]


def complementary_sum(example, over_labels=np.mean):
    logits, expected = negatives(example)  # eq. 22 with kappa = 1 / E
    log_z = log_sum([*example.true_logits, *(logits - np.log(expected))])
    return over_labels(log_z - example.true_logits)


def importance_sampling(example, over_labels=np.mean):
    if not example.logits.size:
        return over_labels(np.zeros(example.true_logits.size))
    log_z = log_sum(example.logits - np.log(example.expected))  # eq. 13
    return over_labels(log_z - example.true_logits)


def ranking(example, margin="log(C-1)", kind="logistic", over_labels=np.mean):
    if margin == "log(C-1)":
        margin = np.log(example.num_classes - 1)
    logits, _ = negatives(example)
    if not logits.size:
        return over_labels(np.zeros(example.true_logits.size))
    terms = [
        [
            -log_sigmoid(label - other - margin)  # eq. 33
            if kind == "logistic"
            else max(0, margin - (label - other))  # eq. 32
            for other in logits
        ]
        for label in example.true_logits
    ]
    return over_labels(np.mean(terms, axis=1))


def noise_contrastive(
    example, log_partition=0.0, remove_accidental_hits=False, over_labels=np.mean
):
    z = example.log_partition if log_partition == "learned" else log_partition
    noise = negatives(example) if remove_accidental_hits else (example.logits, example.expected)

    def log_odds_of_label(logit, expected):  # p' / (k p_n), eq. 30 and 31
        return logit - z - np.log(expected)

    found = log_sigmoid(log_odds_of_label(example.true_logits, example.true_expected))
    refused = log_sigmoid(-log_odds_of_label(*noise))
    return over_labels(-found - refused.sum())


def negative_sampling(example, negatives_weigh="mean", over_labels=np.mean):
    logits, _ = negatives(example)
    refused = -log_sigmoid(-logits)  # eq. 43
    if negatives_weigh == "mean" and logits.size:
        refused = refused / logits.size  # eq. 45
    return over_labels(refused.sum() - log_sigmoid(example.true_logits))


def generalized_bce(example, calibration=0.75, over_labels=np.mean):
    """Petrov and Macdonald 2023, without the division by 1 + the number of negatives."""
    logits, _ = negatives(example)
    rate = logits.size / (example.num_classes - example.true_logits.size)
    beta = 1 - calibration  # the limit of the next line for a rate of 0
    if rate:
        beta = rate * (calibration * (1 - 1 / rate) + 1 / rate)
    log_power = beta * log_sigmoid(example.true_logits)
    return over_labels(-log_power - log_sigmoid(-logits).sum())


def black_out(example, over_labels=np.mean):
    logits, expected = negatives(example)
    others = logits - np.log(expected)  # log of q_d u_d
    losses = []
    for logit, own_expected in zip(example.true_logits, example.true_expected, strict=True):
        scores = np.array([logit - np.log(own_expected), *others])
        total = log_sum(scores)  # the denominator of eq. 46
        log_rejected = [log_sum(np.delete(scores, d)) - total for d in range(1, scores.size)]
        losses.append(-(scores[0] - total) - sum(log_rejected))  # eq. 47
    return over_labels(np.array(losses))


def sampled_softmax(example, over_labels=np.mean):
    logits, expected = negatives(example)
    labels = example.true_logits - np.log(example.true_expected)
    return over_labels(log_sum([*labels, *(logits - np.log(expected))]) - labels)


def active_set_softmax(example, over_labels=np.mean):
    logits, _ = negatives(example)
    return over_labels(log_sum([*example.true_logits, *logits]) - example.true_logits)


def sampled_logistic(example, importance_weights=True, over_labels=np.mean):
    logits, expected = negatives(example)
    weights = 1 / expected if importance_weights else 1.0
    refused = -(weights * log_sigmoid(-logits)).sum()
    # A sum over the labels, not their mean.
    return over_labels(refused - example.true_logits.size * log_sigmoid(example.true_logits))


def gradients(function, example, step=1e-5):
    """Central differences with respect to true logits, candidate logits and log partition."""

    def derivative(field):
        start = np.array(getattr(example, field), np.float64)
        result = np.zeros(start.shape)
        for index in np.ndindex(start.shape):
            change = np.zeros(start.shape)
            change[index] = step
            up, down = (
                function(example._replace(**{field: start + sign * change})) for sign in (1, -1)
            )
            result[index] = (up - down) / (2 * step)
        return result

    return tuple(derivative(field) for field in ("true_logits", "logits", "log_partition"))
