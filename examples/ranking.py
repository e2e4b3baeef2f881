# SPDX-License-Identifier: Apache-2.0
"""How well a model of the next item ranks the whole catalogue, without what came before."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

import tfx_largeout as tlo


class Ranking:
    """Measures a model whose head is called with `exclude`, the classes that came before.

    HIT@k and NDCG@k for k = 5, 10, 20, and MRR, are means over users, by filtered ranks in one pass
    that is exact and bounded in memory; an item that came before is never found. The coverage is
    the share of the catalogue that is among the best k of any user, the popularity how often these
    are in training on average.

    Args:
        model: The model. It is compiled here, which leaves alone others with the same layers.
        loss: A loss of its head.
        counts: `[C]` how often each class is in training; class 0 is no item.
        k: How many items are recommended. Default 10.
    """

    def __init__(self, model: keras.Model, loss: Any, counts: np.ndarray, k: int = 10) -> None:
        self.k, self.counts, self.model = k, counts, model
        metrics = [tlo.metrics.MeanReciprocalRank(name="MRR", filtered=True)]
        for cut in (20, 10, 5):
            metrics.insert(0, tlo.metrics.NDCG(cut, name=f"NDCG@{cut}", filtered=True))
            metrics.insert(0, tlo.metrics.RecallAtK(cut, name=f"HIT@{cut}", filtered=True))
        self.names = [metric.name for metric in metrics]
        model.compile(loss=loss, metrics=metrics)
        self.top = tlo.top_k_model(model, min(k, len(counts)))

    def __call__(self, batches: tf.data.Dataset) -> dict[str, float]:
        """Measures batches of (inputs, items that came next)."""
        found = self.model.evaluate(batches, return_dict=True, verbose=0)
        _, ids = self.top.predict(batches.map(lambda inputs, items: (inputs,)), verbose=0)
        recommended = np.bincount(ids[ids > 0], minlength=len(self.counts))
        result = {name: float(found[name]) for name in self.names}
        result[f"coverage@{self.k}"] = float(np.mean(recommended[1:] > 0))
        often = (recommended * self.counts).sum() / max(recommended.sum(), 1)
        result[f"popularity@{self.k}"] = float(often)
        return result


class Validation(keras.callbacks.Callback):
    """Measures each epoch, for TensorBoard and the choice of an epoch."""

    def __init__(self, ranking: Ranking, batches: tf.data.Dataset) -> None:
        super().__init__()
        self.ranking, self.batches = ranking, batches

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        logs |= {f"val_{name}": value for name, value in self.ranking(self.batches).items()}
