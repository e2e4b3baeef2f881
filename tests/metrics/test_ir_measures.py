# SPDX-License-Identifier: Apache-2.0
"""The ranking metrics compared with ir-measures, on the same ranks; filtered ones, too."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import tfx_largeout as tlo

ir = pytest.importorskip("ir_measures")
EXAMPLES, CLASSES, WIDTH = 60, 200, 8


@pytest.mark.thorough
@pytest.mark.parametrize("num_excluded", [0, 50])
@pytest.mark.parametrize("most_labels", [1, 5])
def test_equals_ir_measures(most_labels, num_excluded):
    rng = np.random.default_rng(most_labels)
    rows = [rng.choice(CLASSES, rng.integers(1, most_labels + 1), False) for _ in range(EXAMPLES)]
    head = tlo.heads.DenseHead(CLASSES, kernel_initializer="random_normal")
    logits = head(tf.constant(rng.standard_normal((EXAMPLES, WIDTH)), tf.float32), training=False)
    excluded = np.argsort(rng.random((EXAMPLES, CLASSES)), axis=1)[:, :num_excluded]
    metrics = {
        ir.nDCG @ 10: tlo.metrics.NDCG(10),
        ir.R @ 10: tlo.metrics.RecallAtK(10),
        ir.P @ 5: tlo.metrics.PrecisionAtK(5),
        ir.RR: tlo.metrics.MeanReciprocalRank(),
    }
    qrels = {str(i): {str(c): 1 for c in row} for i, row in enumerate(rows)}
    run = {
        str(i): {str(c): float(x) for c, x in enumerate(row) if c not in excluded[i]}
        for i, row in enumerate(logits.numpy())
    }
    expected = ir.calc_aggregate(list(metrics), qrels, run)
    exclude = tf.constant(excluded) if num_excluded else None
    for measure, metric in metrics.items():
        metric.update_state(tf.ragged.constant(rows, dtype=tf.int64), logits, exclude=exclude)
        assert float(metric.result()) == pytest.approx(expected[measure], rel=1e-6), str(measure)
