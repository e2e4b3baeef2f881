# SPDX-License-Identifier: Apache-2.0
"""Samplers: the time of one draw inside a graph, and of building the tables.

The claim: a draw of 1,000 shared candidates of 1,000,000 classes takes well under 0.5 ms, no longer
than TensorFlow's stateful samplers take, and hardly grows with the number of classes. The expected
counts of 128 labels are part of it. `unigram_by_search` draws by binary search in the distribution
function, the alternative to the alias table of `Unigram`.

    python benchmarks/samplers.py            # all rows, some minutes
    python benchmarks/samplers.py --quick    # one size, nothing is written
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import harness
import numpy as np
import tensorflow as tf

from tfx_largeout import samplers
from tfx_largeout.labels import Labels
from tfx_largeout.samplers.class_distribution import ClassDistribution, UnigramDistribution

BATCH = 128
POWER = 0.75
DRAWS = 50  # a call
Setting = tuple[int, int]  # classes, candidates

FULL: list[Setting] = [(10_000, 1000), (100_000, 1000), (1_000_000, 1000), (10_000_000, 1000)]
FULL += [(1_000_000, 100), (1_000_000, 10_000), (10_000, 8000)]
QUICK: list[Setting] = [(1_000_000, 1000)]
OWN_CANDIDATES = 100


class SearchedDistribution(UnigramDistribution):
    """Draws by binary search in the distribution function."""

    def __init__(self, weights: np.ndarray) -> None:
        super().__init__(weights)
        self._cumulative = tf.constant(np.cumsum(weights / weights.sum()))

    def sample(self, shape: Any, seed: tf.Tensor) -> tf.Tensor:
        uniform = tf.random.stateless_uniform(shape, seed, dtype=tf.float64)
        ids = tf.searchsorted(self._cumulative, uniform, side="right", out_type=tf.int64)
        return tf.minimum(ids, self.num_classes - 1)


class UnigramBySearch(samplers.Unigram):
    """`Unigram` on a `SearchedDistribution`."""

    def distribution(self, num_classes: int) -> ClassDistribution:
        return SearchedDistribution((self.counts / self.counts.max()) ** self.power)


def zipf_counts(num_classes: int) -> np.ndarray:
    """Returns counts that fall as 1 / rank, in random order of classes."""
    counts = np.ceil(10 * num_classes / np.arange(1, num_classes + 1)).astype(np.int64)
    return np.random.default_rng(0).permutation(counts)


def all_samplers(setting: Setting) -> dict[str, samplers.Sampler]:
    """Returns the sides."""
    num_classes, num_sampled = setting
    counts = zipf_counts(num_classes)
    fixed = {"unigrams": counts.tolist(), "distortion": POWER}
    return {
        "uniform": samplers.Uniform(num_sampled),
        "log_uniform": samplers.LogUniform(num_sampled),
        "unigram": samplers.Unigram(counts, num_sampled, POWER),
        "unigram_by_search": UnigramBySearch(counts, num_sampled, POWER),
        "uniform_repeats": samplers.Uniform(num_sampled, unique=False),
        "log_uniform_repeats": samplers.LogUniform(num_sampled, unique=False),
        "unigram_repeats": samplers.Unigram(counts, num_sampled, POWER, unique=False),
        "unigram_by_search_repeats": UnigramBySearch(counts, num_sampled, POWER, unique=False),
        "bernoulli": samplers.Bernoulli(counts, num_sampled),
        "unigram_own": samplers.Unigram(counts, OWN_CANDIDATES, POWER, per_example=True),
        "bernoulli_own": samplers.Bernoulli(counts, OWN_CANDIDATES, per_example=True),
        "tf_uniform": samplers.TFSampler("uniform", num_sampled),
        "tf_log_uniform": samplers.TFSampler("log_uniform", num_sampled),
        **(
            {"tf_fixed_unigram": samplers.TFSampler("fixed_unigram", num_sampled, options=fixed)}
            if num_classes <= 1_000_000
            else {}  # the counts are an attribute of the op: too large for a graph
        ),
    }


def loop(sampler: samplers.Sampler, num_classes: int) -> Callable[[], Any]:
    """Returns a call that draws `DRAWS` times, one after the other, and uses all results."""
    hidden = tf.zeros([BATCH, 1])
    ids = np.random.default_rng(1).integers(0, num_classes, [BATCH, 1])
    labels = Labels(tf.constant(ids))

    def body(step: tf.Tensor, total: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        drawn = sampler.sample(hidden, labels, tf.stack([7, step]))
        used = tf.reduce_sum(drawn.log_expected) + tf.reduce_sum(drawn.true_log_expected)
        return step + 1, total + used + tf.cast(tf.reduce_max(drawn.ids), tf.float32)

    @tf.function
    def run() -> Any:
        state = (tf.constant(0), tf.constant(0.0))
        return tf.while_loop(lambda step, _: step < DRAWS, body, state, parallel_iterations=1)

    return lambda: run()[1].numpy()


def measure(setting: Setting, repeats: int) -> list[dict[str, Any]]:
    """Returns a row for each sampler."""
    num_classes, num_sampled = setting
    sides = all_samplers(setting)
    build_seconds = {}
    for name, sampler in sides.items():
        start = time.perf_counter()
        sampler.build(num_classes)
        build_seconds[name] = time.perf_counter() - start
    seconds = harness.alternate(
        {name: loop(sampler, num_classes) for name, sampler in sides.items()}, repeats
    )
    return [
        {
            "sampler": name,
            "classes": num_classes,
            "candidates": OWN_CANDIDATES if name.endswith("own") else num_sampled,
            "batch": BATCH,
            "draw_us": round(1e6 * seconds[name] / DRAWS, 1),
            "build_ms": round(1e3 * build_seconds[name], 1),
            **harness.machine(),
        }
        for name in sides
    ]


def main() -> None:
    """Parses the command line and runs the settings."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one size, 3 repeats, no CSV")
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    rows = []
    for setting in QUICK if arguments.quick else FULL:
        measured = measure(setting, 3 if arguments.quick else arguments.repeats)
        for row in measured:
            print({key: row[key] for key in list(row)[:6]}, flush=True)
        rows += measured
    if not arguments.quick:
        harness.write_csv(harness.RESULTS / "samplers.csv", rows)


if __name__ == "__main__":
    main()
