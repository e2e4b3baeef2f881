# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import keras
import numpy as np
import pytest

from tfx_largeout.compare.head_table import HEAD_TABLE, head_row

NUM_CLASSES = 40


@pytest.mark.parametrize("row", HEAD_TABLE, ids=lambda row: row.name)
@pytest.mark.parametrize("sampler", ["log_uniform", "uniform", "unigram"])
def test_each_row_builds_a_head_and_a_loss_that_train(row, sampler):
    options = dict(row.options)
    if "sampler" in options:
        options |= {"num_sampled": 10, "sampler": sampler}
    elif sampler != "log_uniform":
        return  # the head has no sampler
    counts = np.arange(NUM_CLASSES)[::-1]  # the last class has no example
    head, loss = row.build(NUM_CLASSES, counts, seed=1, options=options)
    model = keras.Sequential([keras.Input([4]), keras.layers.Dense(8), head])
    model.compile(keras.optimizers.SGD(0.5), loss=loss)
    x = np.random.default_rng(0).normal(size=[32, 4]).astype(np.float32)
    y = np.arange(32)[:, np.newaxis]
    before = model.evaluate(x, y, verbose=0)
    model.fit(x, y, epochs=20, batch_size=32, verbose=0)
    assert model.evaluate(x, y, verbose=0) < before


def test_names_are_unique_and_unknown_names_refused():
    assert len({row.name for row in HEAD_TABLE}) == len(HEAD_TABLE)
    with pytest.raises(ValueError, match="must be one of full_softmax, .*; got 'softmax'"):
        head_row("softmax")
