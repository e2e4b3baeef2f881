# SPDX-License-Identifier: Apache-2.0
"""Steps of SGD, Adagrad and Adam on single rows, in NumPy float64."""

from __future__ import annotations

import math

import numpy as np


def update_row(weights, slots, row, gradient, rule, learning_rate):
    """Takes a step on one row of `weights`, in place. `rule` has the fields of a RowRule."""
    gradient = np.asarray(gradient, np.float64)
    if rule.unit_rows and np.any(weights[row]):
        w = weights[row] / np.linalg.norm(weights[row])
        gradient = gradient - w * (w @ gradient)
    _step(weights, slots, row, gradient, rule, learning_rate)
    if rule.unit_rows and np.any(weights[row]):
        weights[row] /= np.linalg.norm(weights[row])


def _step(weights, slots, row, gradient, rule, learning_rate):
    if rule.row_clip_norm is not None:
        norm = math.sqrt(np.sum(gradient**2))
        if norm > rule.row_clip_norm:
            gradient = gradient * (rule.row_clip_norm / norm)
    weights[row] *= 1 - learning_rate * rule.weight_decay
    if rule.method == "sgd":
        momentum, nesterov = rule.hyperparameters
        if momentum == 0:
            weights[row] -= learning_rate * gradient
            return
        (m,) = slots
        m[row] = momentum * m[row] - learning_rate * gradient
        weights[row] += momentum * m[row] - learning_rate * gradient if nesterov else m[row]
    elif rule.method == "adagrad":
        (accumulator,) = slots
        accumulator[row] += np.mean(gradient**2) if rule.row_wise else gradient**2
        root = np.sqrt(accumulator[row] + rule.hyperparameters[0])
        weights[row] -= learning_rate * gradient / root
    else:
        beta_1, beta_2, epsilon = rule.hyperparameters
        m, v, age = slots
        age[row] += 1
        m[row] = beta_1 * m[row] + (1 - beta_1) * gradient
        squares = np.mean(gradient**2) if rule.row_wise else gradient**2
        v[row] = beta_2 * v[row] + (1 - beta_2) * squares
        m_hat = m[row] / (1 - beta_1 ** age[row])
        v_hat_root = np.sqrt(v[row]) / math.sqrt(1 - beta_2 ** age[row])
        epsilon_hat = epsilon / math.sqrt(1 - beta_2 ** age[row])
        weights[row] -= learning_rate * m_hat / (v_hat_root + epsilon_hat)
