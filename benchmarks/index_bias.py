# SPDX-License-Identifier: Apache-2.0
"""The bias of Z when candidates come from a hash index, on trained weights: WordNet.

The claims: the sum over classes that an index finds, as in the papers, is far below Z; with other
candidates for the rest, or with the probability of being found, the estimate of Z is unbiased. The
variance, which decides what is useful, is measured, too.

Weights as in `index_recall.py`. For 64 test examples, the estimate is as in `ComplementarySum`: the
labels, and each other candidate divided by its expected count. Random are: the draw, if candidates
are drawn (the tables are fixed); the hash functions, if candidates are only found.

    python benchmarks/index_bias.py            # four minutes
    python benchmarks/index_bias.py --quick    # one epoch, nothing is written
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import harness
import index_recall
import numpy as np
import tensorflow as tf

from tfx_largeout.indexes import HashIndex, SimHash
from tfx_largeout.labels import Labels
from tfx_largeout.ops.candidates.candidate_logits import candidate_logits
from tfx_largeout.samplers import LogUniform, LSHEmbedding, Sampler
from tfx_largeout.samplers.base import OutputWeights

EXAMPLES, TABLES, CANDIDATES = 64, 50, 1000
DRAWS, FUNCTIONS = 200, 50
ALL = 60_000  # classes found: more than there are, so that none is cut off

Make = Callable[[int], HashIndex]


class Method(NamedTuple):
    """A sampler, and its indexes: one for each choice of hash functions, or one for all draws."""

    name: str
    sampler: Sampler
    index: Make | None = None
    similarity: str = ""
    hashes: int | str = ""
    is_drawn: bool = False
    finds_all: bool = False


class Estimate(NamedTuple):
    """log of the estimates of Z, `[N]`, and the number of candidates of each example, `[N]`."""

    log_z: np.ndarray
    count: np.ndarray


def methods() -> Iterator[Method]:
    """Yields the compared cases."""
    half = CANDIDATES // 2
    yield Method("log-uniform", LogUniform(CANDIDATES), is_drawn=True)
    for similarity, hashes in (("angle", 12), ("inner_product", 7)):
        of = _indexes(similarity, hashes)
        for per_example in (True, False):
            which = "own" if per_example else "shared"
            yield Method(
                f"found alone, {which}",
                LSHEmbedding(CANDIDATES, per_example=per_example),
                of,
                similarity,
                hashes,
            )
            yield Method(
                f"found and log-uniform, {which}",
                LSHEmbedding(half, LogUniform(half), per_example=per_example),
                of,
                similarity,
                hashes,
                is_drawn=True,
            )
        if similarity != "angle":
            continue  # most classes are short and share a bucket: nearly all are found
        for corrected in (False, True):
            yield Method(
                "all found, own" + (", corrected" if corrected else ""),
                LSHEmbedding(ALL, per_example=True, corrected=corrected),
                _indexes(similarity, hashes, max_per_bucket=ALL),
                similarity,
                hashes,
                finds_all=True,
            )


def _indexes(similarity: str, hashes: int, **limits: int) -> Make:
    def make(seed: int) -> HashIndex:
        return HashIndex(SimHash(), hashes, TABLES, similarity=similarity, seed=seed, **limits)

    return make


def estimate(
    sampler: Sampler, weights: OutputWeights, trained: index_recall.Trained, seed: int
) -> Estimate:
    """Returns log(sum of e^o over the labels + sum of e^o / E over the other candidates)."""
    labels = trained.labels
    drawn = sampler.sample(trained.hidden, labels, tf.constant([seed, 1]), weights)
    values = candidate_logits(trained.kernel, trained.bias, trained.hidden, labels.ids, drawn.ids)
    negatives = (drawn.ids >= 0) & ~values.hits
    none = tf.constant(float("-inf"))
    terms = [
        tf.where(labels.mask, values.true_logits, none),
        tf.where(negatives, values.candidate_logits - drawn.log_expected, none),
    ]
    log_z = tf.reduce_logsumexp(tf.concat(terms, axis=1), axis=1)
    is_there = tf.broadcast_to(drawn.ids >= 0, tf.shape(negatives))
    count = tf.math.count_nonzero(is_there, axis=1)
    return Estimate(log_z.numpy().astype(np.float64), count.numpy())


def row_of(
    method: Method, trained: index_recall.Trained, log_z: np.ndarray, runs: int
) -> dict[str, Any]:
    """Returns a row: bias and spread over draws, or over choices of the hash functions."""
    estimates = list(_estimates(method, trained, runs))
    if method.finds_all and max(e.count.max() for e in estimates) >= ALL:
        raise RuntimeError(f"ALL must be above the number of classes found; got {ALL}")
    differences = np.stack([e.log_z for e in estimates]) - log_z  # [runs, N]
    ratios = np.exp(differences)
    return {
        "method": method.name,
        "similarity": method.similarity,
        "hashes_per_table": method.hashes,
        "candidates": round(float(np.mean([e.count for e in estimates])), 1),
        "runs": runs,
        "z_ratio": round(float(ratios.mean()), 4),
        "standard_error": round(float(ratios.mean(axis=1).std(ddof=1) / runs**0.5), 4),
        "relative_deviation": round(float(ratios.std(axis=0, ddof=1).mean()), 4),
        "log_bias": round(float(differences.mean()), 4),
        **harness.machine(),
    }


def _estimates(method: Method, trained: index_recall.Trained, runs: int) -> Iterator[Estimate]:
    method.sampler.build(trained.kernel.shape[0])
    index = None
    for run in range(runs):
        if method.index is not None and (index is None or not method.is_drawn):
            index = method.index(run)
            index.rebuild(trained.kernel, trained.bias)
        weights = OutputWeights(trained.kernel, trained.bias, index)
        yield estimate(method.sampler, weights, trained, run)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one epoch; nothing is written")
    quick = parser.parse_args().quick
    trained = index_recall.train(1 if quick else 8)
    trained = trained._replace(
        hidden=trained.hidden[:EXAMPLES], labels=Labels(trained.labels.ids[:EXAMPLES])
    )
    logits = tf.matmul(trained.hidden, trained.kernel, transpose_b=True) + trained.bias
    log_z = tf.reduce_logsumexp(tf.cast(logits, tf.float64), axis=1).numpy()
    rows = []
    for method in methods():
        runs = DRAWS if method.is_drawn else FUNCTIONS
        rows.append(row_of(method, trained, log_z, 3 if quick else runs))
        print({key: rows[-1][key] for key in list(rows[-1])[:9]}, flush=True)
    if not quick:
        harness.write_csv(harness.RESULTS / "index_bias.csv", rows)


if __name__ == "__main__":
    main()
