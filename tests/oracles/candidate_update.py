# SPDX-License-Identifier: Apache-2.0
"""Logits of labels and candidates, and the step on their rows, in NumPy float64: one by one."""

from __future__ import annotations

import numpy as np
from oracles.row_update import update_row


def own_candidates(candidates, batch):
    """Returns candidates as `[N, S]`."""
    return candidates if candidates.ndim == 2 else np.tile(candidates, (batch, 1))


def logits(kernel, bias, hidden, labels, candidates):
    """Returns the logits at labels and candidates, 0 at padding, and the hits."""
    candidates = own_candidates(candidates, len(hidden))
    everything = hidden @ kernel.T + (0 if bias is None else bias)

    def at(ids):
        return np.where(ids >= 0, np.take_along_axis(everything, np.maximum(ids, 0), axis=1), 0)

    hits = np.zeros(candidates.shape, bool)
    for i, row in enumerate(candidates):
        for s, candidate in enumerate(row):
            hits[i, s] = candidate >= 0 and candidate in labels[i]
    return at(labels), at(candidates), hits


def update(kernel, bias, slots, batch, gradients, rule, learning_rate):
    """Takes the step in place; returns dL/dh at the weights before it.

    Slots are (kernel slots, bias slots), a batch is (hidden, labels, candidates).
    """
    hidden, labels, candidates = batch
    candidates = own_candidates(candidates, len(hidden))
    by_class, bias_by_class, hidden_gradient = {}, {}, np.zeros_like(hidden)
    for ids, gradient in zip((labels, candidates), gradients, strict=True):
        for i in range(len(hidden)):
            for position, c in enumerate(ids[i]):
                if c < 0:
                    continue
                g = gradient[i, position]
                hidden_gradient[i] += g * kernel[c]
                by_class[c] = by_class.get(c, 0) + g * hidden[i]
                bias_by_class[c] = bias_by_class.get(c, 0) + g
    for c, gradient in by_class.items():
        update_row(kernel, slots[0], c, gradient, rule, learning_rate)
        if bias is not None:
            update_row(bias, slots[1], c, bias_by_class[c], rule, learning_rate)
    return hidden_gradient
