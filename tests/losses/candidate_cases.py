# SPDX-License-Identifier: Apache-2.0
"""Statistics of candidates made from arrays, and the same as examples of the oracle."""

from __future__ import annotations

import numpy as np
import tensorflow as tf
from oracles.likelihood_estimators import Example

from tfx_largeout.labels import Labels
from tfx_largeout.statistics import CandidateStatistics

CLASSES = 12


def labels_of(rows):
    """Lists of labels as `[N, K]`, padded with -1 before and after."""
    width = max(len(row) for row in rows)
    ids = np.full((len(rows), width), -1)
    for place, row in zip(ids, rows, strict=True):
        start = width - len(row) if len(rows) % 2 else 0
        place[start : start + len(row)] = row
    return ids


def random_case(rng, rows, candidates, scale=2.0, own=None):
    """Statistics of logits `[N, C]`.

    Args:
        rng: Of the logits and the expected counts.
        rows: Lists of labels, N.
        candidates: Ids `[S]` or `[N, S]`, -1 where there is none.
        scale: Of the logits.
        own: Whether the candidates' expected counts are `[N, S]`; they are as the ids by default.
    """
    logits = rng.normal(size=(len(rows), CLASSES)) * scale
    log_expected = np.log(rng.uniform(0.05, 3.0, size=CLASSES))
    return statistics_of(logits, labels_of(rows), np.asarray(candidates), log_expected)


def statistics_of(logits, labels, candidates, log_expected, log_partition=0.7):
    """`CandidateStatistics` of arrays, float32."""
    count = logits.shape[0]
    true_logits = np.where(labels >= 0, np.take_along_axis(logits, np.maximum(labels, 0), 1), 0)
    spread = np.broadcast_to(candidates, (count, candidates.shape[-1]))
    candidate_logits = np.take_along_axis(logits, np.maximum(spread, 0), 1)
    hits = ((spread[:, :, None] == labels[:, None]) & (spread[:, :, None] >= 0)).any(-1)
    return CandidateStatistics(
        labels=Labels(tf.constant(labels, tf.int64)),
        true_logits=tf.constant(true_logits, tf.float32),
        candidate_logits=tf.constant(np.where(spread >= 0, candidate_logits, 0), tf.float32),
        candidate_ids=tf.constant(candidates, tf.int64),
        hits=tf.constant(hits),
        true_log_expected=tf.constant(
            np.where(labels >= 0, log_expected[np.maximum(labels, 0)], 0), tf.float32
        ),
        candidate_log_expected=tf.constant(
            np.where(candidates >= 0, log_expected[np.maximum(candidates, 0)], 0), tf.float32
        ),
        log_partition=tf.constant(log_partition, tf.float32),
        num_classes=logits.shape[1],
    )


def examples_of(statistics):
    """The same as a list of the oracle's examples, padding left out, and where they came from."""
    count, width = statistics.hits.shape
    ids = np.broadcast_to(statistics.candidate_ids, (count, width))
    log_expected = np.broadcast_to(statistics.candidate_log_expected, (count, width))
    examples, places = [], []
    for i in range(count):
        labels, there = statistics.labels.ids[i].numpy() >= 0, ids[i] >= 0
        places.append((labels, there))
        examples.append(
            Example(
                statistics.true_logits[i].numpy()[labels].astype(np.float64),
                np.exp(statistics.true_log_expected[i].numpy()[labels].astype(np.float64)),
                statistics.candidate_logits[i].numpy()[there].astype(np.float64),
                np.exp(log_expected[i][there].astype(np.float64)),
                statistics.hits[i].numpy()[there],
                float(statistics.log_partition),
                statistics.num_classes,
            )
        )
    return examples, places
