# SPDX-License-Identifier: Apache-2.0
"""Soft labels with every head whose loss takes them."""

from __future__ import annotations

import numpy as np
import pytest
from conformance.heads_table import HEADS, class_of
from conformance.test_heads import CLASSES, all_logits, examples, head_of, hidden_of
from conformance.test_labels_left_out import assert_alike, new_model, train
from misuse.misuse_table import soft
from variants import cases_of

pytestmark = pytest.mark.each_of("row", class_of)

every_head = cases_of("row", list(filter(soft, HEADS)))


@every_head
def test_the_loss_is_that_of_each_id_by_its_probability(row):
    x, labels = examples(count=24)
    ids = np.stack([labels, (labels + 7) % CLASSES, np.full(24, -1)], axis=1)
    ids[3, 2] = (ids[3, 0] + 1) % CLASSES
    p = np.random.default_rng(0).dirichlet(np.ones(4), 24)[:, :3].astype("float32")
    model = new_model(row, metrics=["accuracy"], run_eagerly=True)
    first, _ = model.evaluate(x, (ids, p), verbose=0)
    train(model, x, (ids, p))
    loss, accuracy = model.evaluate(x, (ids, p), verbose=0)
    assert loss < first
    arguments = hidden_of(model, x), *row.weights(head_of(model))
    own = [row.oracle(*arguments, [[c] for c in np.maximum(column, 0)]) for column in ids.T]
    p = np.where(ids >= 0, p, 0)
    expected = np.sum(p.T * own, axis=0)
    if row.name.endswith("_smoothed"):  # smoothing does not depend on the probabilities
        uniform = [row.oracle(*arguments, [[*range(CLASSES)]] * 24)]
        expected += 0.1 * (1 - p.sum(axis=1)) * uniform[0]
    np.testing.assert_allclose(loss, expected.mean(), rtol=2e-5)
    best = ids[np.arange(24), p.argmax(axis=1)]
    hits = all_logits(row, model, x).argmax(axis=1) == best
    np.testing.assert_allclose(accuracy, hits.mean(), rtol=1e-6)


@every_head
def test_one_id_of_probability_1_is_a_hard_label(row):
    x, labels = examples(count=24)
    hard, same = (new_model(row, run_eagerly=True) for _ in range(2))
    train(hard, x, labels)
    train(same, x, (labels[:, np.newaxis], np.ones((24, 1), "float32")))
    assert_alike(row, same, hard)
