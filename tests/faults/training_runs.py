# SPDX-License-Identifier: Apache-2.0
"""Short training runs with `Checkpoint`; each ends with a digest of its whole state.

python training_runs.py KIND FOLDER EVERY    # EVERY: "epoch" or a number of steps
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf
from keras import layers

import tfx_largeout as tlo
from tfx_largeout.callbacks.model_state import ModelState

CLASSES, WIDTH, FEATURES, EXAMPLES, BATCH = 3000, 32, 24, 640, 32
EPOCHS = {"sampled": 3, "factored": 3, "hessian_free": 10}


def arrays(seed: int = 3) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(EXAMPLES, FEATURES)).astype("float32")
    return x, rng.integers(0, CLASSES, EXAMPLES)


def epoch_of_arrays(epoch: int) -> tf.data.Dataset:
    """Batches in a random order that depends on the epoch alone."""
    data = tf.data.Dataset.from_tensor_slices(arrays())
    return data.shuffle(EXAMPLES, seed=epoch).batch(BATCH)


def head(kind: str) -> tlo.heads.Head:
    if kind == "factored":
        return tlo.heads.FactoredHead(CLASSES, 0.5, use_bias=True)
    index = tlo.indexes.HashIndex(
        tlo.indexes.SimHash(), hashes_per_table=5, num_tables=8, first_period=10
    )
    return tlo.heads.SampledHead(
        CLASSES,
        tlo.samplers.LSHEmbedding(64),
        tlo.optimizers.RowAdam(0.01),
        seed=4,
        index=index,
    )


def compiled_model(kind: str) -> keras.Model:
    model = keras.Sequential(
        [keras.Input((FEATURES,)), layers.Dense(WIDTH, "relu"), layers.Dropout(0.3), head(kind)]
    )
    loss = tlo.losses.SphericalSoftmax() if kind == "factored" else tlo.losses.ComplementarySum()
    model.compile(keras.optimizers.Adam(0.01), loss)
    return model


def callbacks(folder: Path, every: str | int) -> tuple[tlo.callbacks.Checkpoint, list]:
    """Returns a checkpoint, and all callbacks with others whose state counts."""
    plateau = keras.callbacks.ReduceLROnPlateau("loss", factor=0.5, patience=0, min_delta=0.1)
    stopping = keras.callbacks.EarlyStopping("loss", patience=50)
    checkpoint = tlo.callbacks.Checkpoint(folder, every, keep=2, callbacks=[plateau, stopping])
    return checkpoint, [plateau, stopping, checkpoint]


def train_head(kind: str, folder: Path, every: str | int) -> tuple[keras.Model, dict]:
    model = compiled_model(kind)
    checkpoint, called = callbacks(folder, every)
    data = checkpoint.data(epoch_of_arrays)
    history = model.fit(data, epochs=EPOCHS[kind], shuffle=False, callbacks=called, verbose=0)
    return model, history.history


def train_hessian_free(kind: str, folder: Path, every: str | int) -> tuple[keras.Model, dict]:
    model = keras.Sequential(
        [keras.Input((FEATURES,)), layers.Dense(8, "tanh"), tlo.heads.DenseHead(40)]
    )
    model.compile(loss=tlo.losses.SoftmaxCrossentropy())
    free = tlo.hessian_free
    trainer = tlo.hessian_free.Trainer(
        free.LBFGSPreconditioner(8),
        free.GeometricSample(100, 1.1),
        free.GeometricSample(40, 1.1),
        damping=0.1,
    )
    x, y = arrays()
    checkpoint = tlo.callbacks.Checkpoint(folder, every, keep=2)
    history = trainer.fit(
        model, x, y % 40, epochs=EPOCHS[kind], callbacks=[checkpoint], verbose=0
    ).history
    return model, {key: value for key, value in history.items() if "seconds" not in key}


def train(kind: str, folder: Path, every: str | int) -> dict:
    """Trains to the end; returns digests of the model's whole state and of the history."""
    keras.utils.set_random_seed(1)
    run = train_hessian_free if kind == "hessian_free" else train_head
    model, history = run(kind, folder, every)
    digest = hashlib.blake2b(digest_size=16)
    for name, read in ModelState(model).arrays():
        digest.update(name.encode() + read().tobytes())
    return {"state": digest.hexdigest(), "history": history}


if __name__ == "__main__":
    steps = sys.argv[3] if sys.argv[3] == "epoch" else int(sys.argv[3])
    print(json.dumps(train(sys.argv[1], Path(sys.argv[2]), steps)))
