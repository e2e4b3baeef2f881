# SPDX-License-Identifier: Apache-2.0
"""Figures 1 and 2 of Barber and Botev 2016: which estimator of the likelihood learns best?

Softmax regression without bias, u(c, x) = exp(w_c . x): a concave problem, so that the result
depends only on the objective. N = 2000 points in D = 100 dimensions, labels drawn from a model with
C = 1000 classes; minibatches of 50; 20 negative classes per example; dense gradients with momentum
0.99. Every method gets the learning rate, from the same list, with which its exact log-likelihood
is highest on average over the iterations.

By iteration: the exact mean log-likelihood of the data, and the log of the mean absolute difference
between the probabilities of the model and of the true model.

    python benchmarks/likelihood_estimators.py            # about 10 minutes; CSV and two figures
    python benchmarks/likelihood_estimators.py --quick    # small, nothing is written
"""

from __future__ import annotations

import argparse
import os
from typing import Any, NamedTuple

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import harness
import numpy as np
import tensorflow as tf

from tfx_largeout import losses, samplers
from tfx_largeout.labels import Labels
from tfx_largeout.statistics import CandidateStatistics

MOMENTUM, BATCH, NEGATIVES = 0.99, 50, 20
LEARNING_RATES = [0.5**i for i in range(10)]
SMALLEST_PROBABILITY = 1e-30


class Problem(NamedTuple):
    """The data, and the probabilities of the model that it comes from."""

    x: np.ndarray  # [N, D]
    labels: np.ndarray  # [N]
    counts: np.ndarray  # [C], each at least 1
    probabilities: np.ndarray  # [N, C]

    @classmethod
    def draw(cls, points: int, width: int, classes: int, seed: int) -> Problem:
        rng = np.random.default_rng(seed)
        x = rng.normal(size=(points, width))
        true = rng.normal(size=(classes, width)) * 2 / width**0.5
        probabilities = softmax(x @ true.T)
        labels = (rng.random((points, 1)) > probabilities.cumsum(axis=1)).sum(axis=1)
        labels = np.minimum(labels, classes - 1)
        counts = np.maximum(np.bincount(labels, minlength=classes), 1)
        return cls(x.astype("float32"), labels, counts, probabilities)


class Method(NamedTuple):
    """An estimator, and how its candidates are drawn. Without a sampler: the exact gradient."""

    name: str
    loss: Any = None
    sampler: Any = None


def methods(counts: np.ndarray) -> list[Method]:
    """Returns the methods compared: Figure 1's margins and Figure 2's estimators."""
    unigram = samplers.Unigram(counts, NEGATIVES, per_example=True)
    uniform = samplers.Uniform(NEGATIVES, per_example=True)
    bernoulli = samplers.Bernoulli(counts, NEGATIVES, per_example=True)
    return [
        Method("exact"),
        Method("complementary_sum_importance", losses.ComplementarySum(), unigram),
        Method("complementary_sum_bernoulli", losses.ComplementarySum(), bernoulli),
        Method("importance_sampling", losses.ImportanceSampling(), unigram),
        Method("ranking_margin_log_c", losses.Ranking(), uniform),
        *(
            Method(f"ranking_margin_{m}", losses.Ranking(margin=float(m)), uniform)
            for m in (1, 3, 10)
        ),
        Method("blackout", losses.BlackOut(), unigram),
        Method("noise_contrastive", losses.NoiseContrastive(), unigram),
        Method("negative_sampling", losses.NegativeSampling(), unigram),
        Method("sampled_softmax", losses.SampledSoftmax(), unigram),
    ]


class Regression:
    """Softmax regression that is trained by one method."""

    def __init__(self, problem: Problem, method: Method) -> None:
        classes, width = problem.probabilities.shape[1], problem.x.shape[1]
        self.classes, self.method = classes, method
        self.weights = tf.Variable(tf.zeros([classes, width]))
        self.momentum = tf.Variable(tf.zeros([classes, width]))
        self.x, self.labels = tf.constant(problem.x), tf.constant(problem.labels)
        if method.sampler is not None:
            method.sampler.build(classes)
        self.run = tf.function(self._run)

    def restart(self) -> None:
        """Sets all weights to 0."""
        self.weights.assign(tf.zeros_like(self.weights))
        self.momentum.assign(tf.zeros_like(self.momentum))

    def log_likelihood(self, x: tf.Tensor, labels: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        """Returns the mean of the method's objective."""
        logits = tf.matmul(x, self.weights, transpose_b=True)
        if self.method.sampler is None:
            return -tf.reduce_mean(
                tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
            )
        labels = Labels(labels[:, tf.newaxis])
        drawn = self.method.sampler.sample(x, labels, seed)
        statistics = CandidateStatistics(
            labels,
            tf.gather(logits, labels.ids, batch_dims=1),
            tf.gather(logits, tf.maximum(drawn.ids, 0), batch_dims=1),
            drawn.ids,
            drawn.ids == labels.ids,
            drawn.true_log_expected,
            drawn.log_expected,
            tf.constant(0.0),
            self.classes,
        )
        return -tf.reduce_mean(self.method.loss.from_statistics(statistics))

    def _run(self, begin: tf.Tensor, steps: tf.Tensor, rate: tf.Tensor) -> tf.Tensor:
        for step in tf.range(begin, begin + steps):
            seed = tf.stack([tf.constant(1), step])
            chosen = tf.random.stateless_uniform(
                [BATCH], seed, 0, tf.shape(self.labels)[0], tf.int32
            )
            x, labels = tf.gather(self.x, chosen), tf.gather(self.labels, chosen)
            with tf.GradientTape() as tape:
                value = self.log_likelihood(x, labels, seed + 7)
            gradient = tf.convert_to_tensor(tape.gradient(value, self.weights))
            self.momentum.assign(MOMENTUM * self.momentum + rate * gradient)
            self.weights.assign_add(self.momentum)
        return begin + steps


def curve(
    regression: Regression, problem: Problem, rate: float, iterations: int, every: int
) -> list[dict[str, Any]]:
    """Trains from 0; returns rows at regular iterations."""
    regression.restart()
    rows, done = [], tf.constant(0)
    while True:
        probabilities = softmax(problem.x @ regression.weights.numpy().T.astype("float64"))
        of_labels = probabilities[np.arange(len(problem.labels)), problem.labels]
        difference = np.abs(probabilities - problem.probabilities).mean()
        rows.append(
            {
                "method": regression.method.name,
                "learning_rate": rate,
                "iteration": int(done),
                "log_likelihood": float(np.log(of_labels + SMALLEST_PROBABILITY).mean()),
                "log_difference": float(np.log(difference)),
            }
        )
        if int(done) >= iterations:
            return rows
        done = regression.run(done, tf.constant(every), tf.constant(rate, tf.float32))


def best_curve(
    problem: Problem, method: Method, iterations: int, every: int, rates: list[float]
) -> list[dict[str, Any]]:
    """Returns the curve of the learning rate with the highest mean likelihood over the run."""
    regression = Regression(problem, method)
    curves = [curve(regression, problem, rate, iterations, every) for rate in rates]
    finite = [rows for rows in curves if np.isfinite(rows[-1]["log_likelihood"])]
    return max(finite, key=lambda rows: np.mean([row["log_likelihood"] for row in rows]))


def softmax(logits: np.ndarray) -> np.ndarray:
    """Returns the probabilities; NaN where a logit is."""
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))


def draw_figure(rows: list[dict[str, Any]], names: list[str], name: str) -> None:
    """Draws both quantities of some methods into docs/figures."""
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(11, 4.5), constrained_layout=True)
    for method in names:
        own = [row for row in rows if row["method"] == method]
        iterations = [row["iteration"] for row in own]
        label = f"{method} ({own[0]['learning_rate']:.2g})"
        axes[0].semilogy(iterations, [-row["log_likelihood"] for row in own], label=label)
        axes[1].plot(iterations, [row["log_difference"] for row in own])
    axes[0].set(xlabel="iteration", ylabel="exact negative log-likelihood")
    axes[1].set(xlabel="iteration", ylabel="log mean |p - p true|")
    axes[0].legend(fontsize="small")
    folder = harness.RESULTS.parent.parent / "docs" / "figures"
    figure.savefig(folder / f"{name}.png", dpi=110)


def main() -> None:
    """Parses the command line, runs all methods, writes CSV and figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small, nothing is written")
    parser.add_argument("--iterations", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    iterations, rates = arguments.iterations, LEARNING_RATES
    sizes = (2000, 100, 1000)
    if arguments.quick:
        iterations, rates, sizes = 100, [0.5, 0.05], (200, 10, 50)
    problem = Problem.draw(*sizes, seed=arguments.seed)
    rows: list[dict[str, Any]] = []
    for method in methods(problem.counts):
        own = best_curve(problem, method, iterations, iterations // 50, rates)
        rows += own
        print(own[-1], flush=True)
    if arguments.quick:
        return
    machine = harness.machine()
    harness.write_csv(
        harness.RESULTS / "likelihood_estimators.csv", [{**row, **machine} for row in rows]
    )
    names = [method.name for method in methods(problem.counts)]
    margins = [name for name in names if name.startswith("ranking") or name == "exact"]
    others = [name for name in names if not name.startswith("ranking_margin_") or "log" in name]
    draw_figure(rows, margins, "likelihood_margins")
    draw_figure(rows, others, "likelihood_estimators")


if __name__ == "__main__":
    main()
