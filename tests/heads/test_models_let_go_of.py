# SPDX-License-Identifier: Apache-2.0
"""References that keep a trained model after its owner has dropped it: docs/results/reliability.md.

Only TensorFlow's registry of custom gradients, which other tests empty (conftest.py), may keep it;
nothing of this package.
"""

from __future__ import annotations

import gc
import weakref

import keras
import numpy as np
from conformance.heads_table import HEADS, first_of_a_class
from variants import cases_of

import tfx_largeout as tlo
from tfx_largeout.tensorflow_internals import custom_gradients, custom_gradients_forgotten

X, Y = np.random.default_rng(0).normal(size=(32, 8)).astype("float32"), np.arange(32)


@cases_of("row", list(filter(first_of_a_class, HEADS)))
def test_only_the_registry_of_tensorflow_keeps_a_trained_model(row):
    with custom_gradients_forgotten():
        head = row.make_head(50)
        model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(8), head])
        model.compile(row.make_optimizer(), row.make_loss(), metrics=[tlo.metrics.PrecisionAtK(1)])
        model.fit(X, Y, batch_size=16, verbose=0)
        registered = custom_gradients()
        for _ in range(3):
            model.fit(X, Y, batch_size=16, verbose=0)
            model.evaluate(X, Y, verbose=0)
            model.predict(X, verbose=0)
        assert custom_gradients() == registered  # steps, evaluation and prediction add nothing
        kept = weakref.ref(head)
        del model, head
        keras.backend.clear_session()
        gc.collect()
    gc.collect()
    assert kept() is None
