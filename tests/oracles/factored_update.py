# SPDX-License-Identifier: Apache-2.0
"""The exact SGD step of a spherical loss, in NumPy float64: naive, and factored.

Rows of W are classes, rows of H examples. A loss of the spherical family gives the gradients g_a
`[B, K]`, g_q `[B]` and g_s `[B]` with respect to a_ik = o_i[y_ik], q_i = sum_c o_ic^2 and
s_i = sum_c o_ic, where o_i = W h_i; labels are padded with -1.
"""

from __future__ import annotations

import dataclasses

import numpy as np


def statistics(weights, hidden, labels):
    """Returns a, q and s from all logits; a is 0 at padding."""
    logits = hidden @ weights.T
    targets = np.take_along_axis(logits, np.maximum(labels, 0), axis=1)
    return np.where(labels >= 0, targets, 0.0), (logits**2).sum(axis=1), logits.sum(axis=1)


def logit_gradient(weights, hidden, labels, g_a, g_q, g_s):
    """Returns dL/do `[B, C]`: every entry of it."""
    gradient = 2 * g_q[:, np.newaxis] * (hidden @ weights.T) + g_s[:, np.newaxis]
    for i, row in enumerate(labels):
        for k, label in enumerate(row):
            if label >= 0:
                gradient[i, label] += g_a[i, k]
    return gradient


def naive_step(weights, hidden, labels, gradients, learning_rate, weight_decay=0.0):
    """Returns the W of the naive layer after a step, and dL/dH: O(B C D)."""
    error = logit_gradient(weights, hidden, labels, *gradients)
    decayed = (1 - learning_rate * weight_decay) * weights
    return decayed - learning_rate * error.T @ hidden, error @ weights


@dataclasses.dataclass
class Factored:
    """W = V U + 1 w^T, with P = U^-T, Q = W^T W and c = W^T 1."""

    v: np.ndarray
    u: np.ndarray
    p: np.ndarray
    q: np.ndarray
    w: np.ndarray
    c: np.ndarray

    @classmethod
    def of(cls, weights):
        """Starts from V = W."""
        unit = np.eye(weights.shape[1])
        return cls(
            weights.copy(),
            unit,
            unit,
            weights.T @ weights,
            np.zeros(len(unit)),
            weights.sum(axis=0),
        )

    @property
    def weights(self):
        return self.v @ self.u + self.w

    def statistics(self, hidden, labels):
        rows = self.v[np.maximum(labels, 0)]
        targets = np.einsum("bkd,bd->bk", rows, hidden @ self.u.T) + (hidden @ self.w)[:, None]
        squares = np.einsum("bd,de,be->b", hidden, self.q, hidden)
        return np.where(labels >= 0, targets, 0.0), squares, hidden @ self.c

    def step(self, hidden, labels, gradients, learning_rate, weight_decay=0.0):
        """Takes the same step in O(B D^2 + B^2 D + B^3); returns dL/dH."""
        g_a, g_q, g_s = gradients
        g_a = np.where(labels >= 0, g_a, 0.0)
        decay = 1 - learning_rate * weight_decay
        eta = learning_rate / decay
        classes, (batch, width) = len(self.v), hidden.shape

        summed = np.einsum("bk,bkd->bd", g_a, self.v[np.maximum(labels, 0)])
        alpha = g_a.sum(axis=1)
        y = summed @ self.u + np.outer(alpha, self.w) + np.outer(g_s, self.c)
        weighted = g_q[:, np.newaxis] * hidden  # G H
        e = 2 * weighted @ self.q + y

        # The target rows, one after the other: repeats add up.
        touched = np.zeros((classes, batch))
        for (i, k), label in np.ndenumerate(labels):
            if label >= 0:
                touched[label, i] += g_a[i, k]
        a_bar_squared = touched.T @ touched + np.outer(alpha, g_s) + np.outer(g_s, alpha)
        a_bar_squared += classes * np.outer(g_s, g_s)
        t = 2 * e @ weighted.T + 2 * weighted @ y.T + a_bar_squared
        np.testing.assert_allclose(t, t.T, rtol=1e-6, atol=1e-6 * (1 + np.abs(t).max()))
        r = e.T - eta / 2 * hidden.T @ t
        rh = r @ hidden
        self.q = self.q - eta * (rh + rh.T)

        m = np.eye(width) - 2 * eta * hidden.T @ weighted
        small = np.eye(batch) - 2 * eta * weighted @ hidden.T
        inverse = np.eye(width) + 2 * eta * hidden.T @ np.linalg.solve(small, weighted)
        self.u = self.u @ m
        self.p = self.p @ inverse
        self.w = m @ self.w - eta * hidden.T @ g_s
        self.c = m @ self.c - eta * hidden.T @ (alpha + classes * g_s)
        self.v = self.v - eta * touched @ (hidden @ self.p.T)

        self.u, self.w, self.c = decay * self.u, decay * self.w, decay * self.c
        self.p, self.q = self.p / decay, decay**2 * self.q
        return e
