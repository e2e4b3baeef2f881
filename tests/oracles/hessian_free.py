# SPDX-License-Identifier: Apache-2.0
"""Hessian-free training in NumPy float64: networks, matrices and recursions written out."""

from __future__ import annotations

import math

import numpy as np


def outputs(weights, x):
    """The output z of dense layers `[W_1, b_1, W_2, b_2, ...]` with tanh between them."""
    layers = list(zip(weights[::2], weights[1::2], strict=True))
    for number, (kernel, bias) in enumerate(layers):
        x = x @ kernel + bias
        if number < len(layers) - 1:
            x = np.tanh(x)
    return x


def jacobian(weights, x, step=1e-6):
    """dz/dtheta `[N, K, n]`, by central differences."""
    weights = [np.asarray(weight, np.float64) for weight in weights]
    columns = []
    for place, weight in enumerate(weights):
        for index in np.ndindex(weight.shape):
            moved = [[w.copy() for w in weights] for _ in range(2)]
            moved[0][place][index] += step
            moved[1][place][index] -= step
            columns.append((outputs(moved[0], x) - outputs(moved[1], x)) / (2 * step))
    return np.stack(columns, axis=-1)


def softmax(z):
    e = np.exp(z - z.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def sigmoid(z):
    return 1 / (1 + np.exp(-z))


def loss_values(kind, z, y):
    """l(y, z) of each example: y are classes for `softmax`, else arrays like z."""
    if kind == "softmax":
        return -np.log(softmax(z)[np.arange(len(z)), y])
    if kind == "sigmoid":
        return -(y * np.log(sigmoid(z)) + (1 - y) * np.log(sigmoid(-z))).mean(axis=1)
    return ((z - y) ** 2).mean(axis=1)


def loss_gradients(kind, z, y):
    """dl/dz of each example, `[N, K]`."""
    if kind == "softmax":
        return softmax(z) - np.eye(z.shape[1])[y]
    if kind == "sigmoid":
        return (sigmoid(z) - y) / z.shape[1]
    return 2 * (z - y) / z.shape[1]


def loss_hessians(kind, z):
    """d2l/dz2 of each example, `[N, K, K]`."""
    width = z.shape[1]
    if kind == "softmax":
        p = softmax(z)
        return p[:, :, None] * np.eye(width) - p[:, :, None] * p[:, None, :]
    if kind == "sigmoid":
        p = sigmoid(z)
        return (p * (1 - p))[:, :, None] * np.eye(width) / width
    return np.broadcast_to(2 * np.eye(width) / width, (len(z), width, width))


def gauss_newton(kind, weights, x, example_weights):
    """sum_i w_i J_i^T H_i J_i, `[n, n]`."""
    jacobians, hessians = jacobian(weights, x), loss_hessians(kind, outputs(weights, x))
    return np.einsum("i,ika,ikl,ilb->ab", example_weights, jacobians, hessians, jacobians)


def gradients(kind, weights, x, y):
    """The gradient of each example's loss, `[N, n]`."""
    return np.einsum(
        "ika,ik->ia", jacobian(weights, x), loss_gradients(kind, outputs(weights, x), y)
    )


def lbfgs_matrix(steps, differences):
    """The matrix of Algorithm 2, by its recursion on dense matrices."""
    s, y = steps[-1], differences[-1]
    matrix = (s @ y) / (y @ y) * np.eye(len(s))
    for s, y in zip(steps, differences, strict=True):
        rho = 1 / (y @ s)
        left = np.eye(len(s)) - rho * np.outer(s, y)
        matrix = left @ matrix @ left.T + rho * np.outer(s, s)
    return matrix


def conjugate_gradient(a, b, x, inverse, iterations):
    """All iterates and residuals of flexible conjugate gradients, the start included."""
    r = b - a @ x
    z = inverse @ r
    p, xs, rs = z, [x], [r]
    for _ in range(iterations):
        alpha = (r @ z) / (p @ a @ p)
        x, r_new = x + alpha * p, r - alpha * (a @ p)
        z_new = inverse @ r_new
        p = z_new + (z_new @ (r_new - r)) / (z @ r) * p
        r, z = r_new, z_new
        xs.append(x)
        rs.append(r)
    return xs, rs


def quadratic(a, b, x):
    return x @ a @ x / 2 - b @ x


def martens_stop(values, progress):
    """The first iteration at which Martens' rule ends a run with these values, or None."""
    for i in range(1, len(values)):
        k = max(10, i // 10)
        if i >= k and values[i] < 0 and (values[i] - values[i - k]) / values[i] < k * progress:
            return i
    return None


def sample_size(gradients_of_all, theta):
    """The least |S| with V/|S| (N-|S|)/(N-1) <= theta^2 |g|^2, by trying all."""
    population = len(gradients_of_all)
    noise = gradients_of_all.var(axis=0, ddof=1).sum()
    allowed = theta**2 * (gradients_of_all.mean(axis=0) ** 2).sum()
    for size in range(1, population + 1):
        if noise / size * (population - size) / (population - 1) <= allowed:
            return size
    return population


def backtracked(losses, previous):
    """The place of the iterate that Algorithm 1 chooses, from the losses of all of them."""
    losses = [math.inf if math.isnan(loss) else loss for loss in losses]
    i = len(losses) - 1
    best = losses[i]
    while i > 0:
        if previous >= best and losses[i - 1] >= best:
            return i
        i -= 1
        best = losses[i]
    return i


def unflatten(vector, weights):
    parts = np.split(vector, np.cumsum([weight.size for weight in weights])[:-1])
    return [part.reshape(weight.shape) for part, weight in zip(parts, weights, strict=True)]


def mean_loss(kind, vector, weights, x, y):
    return loss_values(kind, outputs(unflatten(vector, weights), x), y).mean()


def iteration(kind, weights, training, held_out, damping, start):
    """An iteration on all data without a preconditioner, straight from the algorithm.

    Returns weights, damping and start of the next one, and rho, step size and CG iterations.
    """
    theta = np.concatenate([np.asarray(weight, float).reshape(-1) for weight in weights])
    x, y = training
    current = unflatten(theta, weights)
    g = gradients(kind, current, x, y).mean(axis=0)
    a = gauss_newton(kind, current, x, np.full(len(x), 1 / len(x))) + damping * np.eye(len(theta))
    xs, rs = conjugate_gradient(a, -g, start, np.eye(len(theta)), 40)
    solved = next((i for i, r in enumerate(rs) if r @ r <= 1e-12 * (g @ g)), 40)
    last = martens_stop([quadratic(a, -g, d) for d in xs], 5e-4) or 40
    last = min(last, solved)
    places = sorted({math.ceil(1.3**j) for j in range(20)} & set(range(1, last)) | {last})

    def held_out_loss(step):
        return mean_loss(kind, theta + step, weights, *held_out)

    previous = held_out_loss(0)
    losses = [held_out_loss(xs[place]) for place in places]
    chosen = backtracked(losses, previous)
    d = xs[places[chosen]]
    rho = (losses[chosen] - previous) / quadratic(a, -g, d)
    alpha = 1.0
    while held_out_loss(alpha * d) > previous + 0.01 * alpha * (g @ d):
        alpha *= 0.8
    damping *= 1.5 if rho < 0.25 else 2 / 3 if rho > 0.75 else 1
    new = unflatten(theta + alpha * d, weights)
    return new, damping, 0.95 * xs[last], rho, alpha, last
