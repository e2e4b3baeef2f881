# SPDX-License-Identifier: Apache-2.0
"""Training that can be killed at any moment, and continues exactly where it was.

Kill it with `kill -9` and start the same command again, as often as you like: the last line that it
prints is the same as in an uninterrupted run. docs/guides/save_and_resume.md explains how.

    python examples/exact_resume.py --folder runs/resume
"""

from __future__ import annotations

import argparse
import hashlib
from collections.abc import Sequence

import keras
import numpy as np
import tensorflow as tf

import tfx_largeout as tlo

FEATURES = 32


def build_model(num_classes: int) -> keras.Model:
    sampler = tlo.samplers.LSHEmbedding(100, tlo.samplers.LogUniform(100))
    index = tlo.indexes.HashIndex(tlo.indexes.SimHash(), hashes_per_table=6, num_tables=10)
    model = keras.Sequential(
        [
            keras.Input((FEATURES,)),
            keras.layers.Dense(32, "relu"),
            keras.layers.Dropout(0.2),
            # A resumed run takes the head's seed from the checkpoint, so it needs none. With a
            # seed, independent runs can be compared.
            tlo.heads.SampledHead(
                num_classes, sampler, tlo.optimizers.RowAdam(0.01), seed=1, index=index
            ),
        ]
    )
    model.compile(keras.optimizers.Adam(1e-3), tlo.losses.ComplementarySum())
    return model


def random_examples(num_classes: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns inputs and labels; the first classes are the most frequent."""
    rng = np.random.default_rng(0)
    labels = np.minimum(rng.zipf(1.3, count), num_classes) - 1
    noise = rng.normal(size=(count, FEATURES))
    return (np.sin(np.outer(labels, np.arange(FEATURES))) + noise).astype("float32"), labels


def main(arguments: Sequence[str] | None = None) -> str:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", default="runs/exact_resume", help="folder of the checkpoints")
    parser.add_argument("--every", type=int, default=50, help="steps between two checkpoints")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--classes", type=int, default=100_000)
    parser.add_argument("--examples", type=int, default=20_000)
    options = parser.parse_args(arguments)

    keras.utils.set_random_seed(1)  # for initial weights, and the order of `shuffle`
    examples = tf.data.Dataset.from_tensor_slices(
        random_examples(options.classes, options.examples)
    )
    model = build_model(options.classes)

    checkpoint = tlo.callbacks.Checkpoint(options.folder, every=options.every)
    data = checkpoint.data(lambda epoch: examples.shuffle(10_000, seed=epoch).batch(64))
    model.fit(data, epochs=options.epochs, shuffle=False, callbacks=[checkpoint], verbose=2)

    digest = hashlib.sha256(b"".join(weight.tobytes() for weight in model.get_weights()))
    print("weights:", digest.hexdigest()[:16])
    return digest.hexdigest()


if __name__ == "__main__":
    main()
