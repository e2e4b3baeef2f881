# SPDX-License-Identifier: Apache-2.0
"""Trains a small reverse dictionary on the shipped WordNet, and exports it for server.py.

    python examples/serve/train.py models/words          # two minutes on two cores
    python examples/serve/server.py models/words

Training sees definitions as weighted bags of words. The exported model takes texts: its first layer
converts them to bags of words.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf
from text import TfIdf

import tfx_largeout as tlo
from tfx_largeout.datasets import SparseExamples, load_wordnet, tf_idf, wordnet_names

BATCH = 512


def build_model(num_features: int, num_classes: int) -> keras.Sequential:
    sampler = tlo.samplers.LogUniform(100, per_example=True)
    return keras.Sequential(
        [
            keras.Input((num_features,), sparse=True),
            tlo.layers.SparseDense(128, activation="relu"),
            tlo.heads.SampledHead(num_classes, sampler, tlo.optimizers.RowAdam(0.005)),
        ]
    )


def text_layer(train: SparseExamples, words: list[str]) -> TfIdf:
    """Returns the layer that computes the rows of `tf_idf(train)`; `train` has counts of words."""
    frequency = np.bincount(train.feature_ids, minlength=train.num_features)
    idf = np.log((1 + train.num_examples) / (1 + frequency)) + 1
    return TfIdf(words, idf.astype(np.float32))


def new_folder(text: str) -> Path:
    """Returns a path to which `tlo.export` can write; checked before the training."""
    path = Path(text)
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise argparse.ArgumentTypeError(f"must not be there, or be empty; got {text}")
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=new_folder, help="new or empty folder for the model")
    parser.add_argument("--config", choices=["hyper", "lemma"], default="hyper")
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--examples", type=int, help="use only the first so many examples")
    parser.add_argument("-k", type=int, default=50, help="the largest k of a request")
    parser.add_argument("--index", choices=["ivf"], help="search only a part of the words")
    arguments = parser.parse_args()

    keras.utils.set_random_seed(0)
    counts, test = (
        examples.take(np.arange(len(examples))[: arguments.examples])
        for examples in load_wordnet(arguments.config)
    )
    train, test = tf_idf(counts, test)
    if not 1 <= arguments.k <= train.num_labels:
        parser.error(f"-k must be in [1, {train.num_labels}], the words; got {arguments.k}")
    model = build_model(train.num_features, train.num_labels)
    model.compile(
        tlo.optimizers.RowRMSprop(2e-3),
        loss=tlo.losses.ComplementarySum(),
        metrics=[tlo.metrics.PrecisionAtK(1), tlo.metrics.RecallAtK(10)],
    )
    batches = train.dataset(BATCH, shuffle=True)
    model.fit(batches, epochs=arguments.epochs, shuffle=False, verbose=2)
    model.evaluate(test.dataset(BATCH), verbose=2)

    features, words = wordnet_names(arguments.config)
    text = keras.Input((), dtype="string")
    tlo.export(
        keras.Sequential([text, text_layer(counts, features), *model.layers]),
        arguments.folder,
        arguments.k,
        activation="softmax",
        index=arguments.index,
        names=[word.replace("_", " ") for word in words],
    )


if __name__ == "__main__":
    tf.get_logger().setLevel("ERROR")
    main()
