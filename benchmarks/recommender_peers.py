# SPDX-License-Identifier: Apache-2.0
"""Sequence models of other packages, trained on the histories of examples/histories.py.

RecBole's SASRec, and keras-rs's retrieval as in its tutorial on sequences. Each function gets the
histories and a number of epochs, and returns a function that scores histories, the best epoch by
validation, and the seconds of training. Items are classes; users' last items are left out.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import histories as data
import numpy as np

LENGTH = 20  # items of a history that count
Scores = Callable[[np.ndarray], np.ndarray]  # of histories `[n, T]`, padded with 0: `[n, C]`


Trained = tuple[Scores, int, float]


def recent(seen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the last items of each history, `[n, LENGTH]`, then padding, and their number."""
    sizes = np.minimum((seen > 0).sum(axis=1), LENGTH)
    result = np.zeros((len(seen), LENGTH), np.int64)
    for row, items, size in zip(result, seen, sizes, strict=True):
        row[:size] = items[items > 0][-size:] if size else 0
    return result, sizes


def recbole_sasrec(histories: Any, epochs: int) -> Trained:
    """RecBole's SASRec: 64 wide, cross-entropy, each prefix an example; batches of 256, not 2048.

    With its own batches it takes several times as many epochs.
    """
    import pandas as pd
    import torch
    from recbole.config import Config
    from recbole.data import create_dataset, data_preparation
    from recbole.data.interaction import Interaction
    from recbole.utils import get_model, get_trainer, init_seed

    before, items, numbers = histories.held_out("test")
    rows = list(histories.train)
    for user, had, item in zip(numbers, before, items, strict=True):
        rows[user] = np.append(had, item)
    table = pd.DataFrame(
        {
            "user_id:token": np.repeat(np.arange(len(rows)), [len(row) for row in rows]),
            "item_id:token": np.concatenate(rows),
            "timestamp:float": np.concatenate([np.arange(len(row)) for row in rows]),
        }
    )
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "set").mkdir()
        table.to_csv(Path(folder) / "set" / "set.inter", sep="\t", index=False)
        settings = {
            "data_path": folder,
            "checkpoint_dir": folder,
            "load_col": {"inter": ["user_id", "item_id", "timestamp"]},
            "MAX_ITEM_LIST_LENGTH": LENGTH,
            "train_neg_sample_args": None,  # the loss is over all items
            "eval_args": {"split": {"LS": "valid_and_test"}, "order": "TO", "mode": "full"},
            "valid_metric": "NDCG@10",
            "epochs": epochs,
            "train_batch_size": 256,
            "seed": 1,
            "use_gpu": False,
            "show_progress": False,
        }
        config = Config(model="SASRec", dataset="set", config_dict=settings)
        init_seed(config["seed"], config["reproducibility"])
        dataset = create_dataset(config)
        train, validation, _ = data_preparation(config, dataset)
        model = get_model("SASRec")(config, train.dataset)
        trainer = get_trainer(config["MODEL_TYPE"], "SASRec")(config, model)
        start, found = time.perf_counter(), []

        def after(epoch: int, score: float) -> None:
            found.append(score)
            print(f"epoch {epoch + 1}: {score}", flush=True)

        trainer.fit(train, validation, callback_fn=after, verbose=False, show_progress=False)
        seconds = time.perf_counter() - start
        trained = torch.load(trainer.saved_model_file, weights_only=False)["state_dict"]
        model.load_state_dict(trained)
    model.eval()
    names = {name: column for column, name in enumerate(dataset.field2id_token["item_id"])}
    columns = np.array([names.get(str(item), 0) for item in range(histories.num_classes)])

    def scores(seen: np.ndarray) -> np.ndarray:
        known, sizes = recent(seen)
        batch = Interaction(
            {
                model.ITEM_SEQ: torch.from_numpy(columns[known]),
                model.ITEM_SEQ_LEN: torch.from_numpy(sizes),
            }
        )
        with torch.no_grad():
            return model.full_sort_predict(batch).numpy()[:, columns]

    return scores, int(np.argmax(found)) + 1, seconds


def keras_rs_retrieval(histories: Any, epochs: int) -> Trained:
    """keras-rs: a GRU, in-batch softmax, corrected by how often items come; 128 wide."""
    import keras
    import keras_rs
    import tensorflow as tf

    keras.utils.set_random_seed(1)
    width, batch_size, counts = 128, 256, histories.counts
    places = [(row, i) for row in histories.train for i in range(1, len(row))]
    known, _ = recent(data.padded([row[max(i - LENGTH, 0) : i] for row, i in places]))
    following = np.array([row[i] for row, i in places])
    share = (np.bincount(following, minlength=len(counts)) / len(following)).astype("float32")

    sequence = keras.Input([None], dtype="int64")
    embedded = keras.layers.Embedding(len(counts), width, mask_zero=True)(sequence)
    queries = keras.Model(sequence, keras.layers.Dropout(0.5)(keras.layers.GRU(width)(embedded)))
    candidates = keras.layers.Embedding(len(counts), width)
    candidates.build()

    class Model(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.queries, self.candidates = queries, candidates
            self.hits = keras_rs.layers.RemoveAccidentalHits()
            self.correction = keras_rs.layers.SamplingProbabilityCorrection()

        def call(self, inputs: Any, training: bool = False) -> Any:
            known, items = inputs
            scores = self.queries(known, training=training) @ tf.transpose(self.candidates(items))
            scores = self.correction(scores, tf.gather(share, items))
            return self.hits(scores, tf.eye(tf.shape(items)[0]), items)

    model = Model()
    model.compile(
        keras.optimizers.Adam(1e-3), keras.losses.CategoricalCrossentropy(from_logits=True)
    )
    order = np.argsort((known > 0).sum(axis=1), kind="stable")
    parts = np.array_split(order, -(-len(order) // batch_size))

    def batches() -> Any:
        rng = np.random.default_rng(len(found))
        for part in rng.permutation(len(parts)):
            rows = parts[part]
            longest = (known[rows] > 0).sum(axis=1).max()
            yield (known[rows][:, :longest], following[rows]), np.eye(len(rows), dtype="float32")

    signature = (
        (tf.TensorSpec([None, None], tf.int64), tf.TensorSpec([None], tf.int64)),
        tf.TensorSpec([None, None], tf.float32),
    )
    found: list[float] = []
    dataset = tf.data.Dataset.from_generator(batches, output_signature=signature)
    before, items, _ = histories.held_out("validation")
    start, best = time.perf_counter(), []

    def scores(seen: np.ndarray) -> np.ndarray:
        known, sizes = recent(seen)
        hidden = queries(known[:, : max(1, sizes.max())])
        retrieval = keras_rs.layers.BruteForceRetrieval(candidates.embeddings, k=10)
        return np.array(retrieval.compute_score(hidden, retrieval.candidate_embeddings))

    from recommenders import evaluate

    for epoch in range(epochs):
        model.fit(dataset, epochs=1, verbose=0)
        found.append(evaluate(scores, before, items, counts)["NDCG@10"])
        print(f"epoch {epoch + 1}: {found[-1]:.4f}", flush=True)
        if found[-1] == max(found):
            best = model.get_weights()
        elif epoch - int(np.argmax(found)) >= 5:
            break
    model.set_weights(best)
    return scores, int(np.argmax(found)) + 1, time.perf_counter() - start


TRAINED = {"recbole-sasrec": recbole_sasrec, "keras-rs": keras_rs_retrieval}
