# SPDX-License-Identifier: Apache-2.0
"""A reverse dictionary: from a definition to the word, among 139,536 classes.

Trains a bag-of-words model on the shipped WordNet data, evaluates it exactly, and answers a few
definitions. Run `tensorboard --logdir runs/reverse_dictionary` to see the curves.

    python examples/wordnet_reverse_dictionary.py --epochs 5
"""

from __future__ import annotations

import argparse

import keras
import numpy as np
import tensorflow as tf

import tfx_largeout as tlo
from tfx_largeout.datasets import SparseExamples, load_wordnet, tf_idf, wordnet_names


def build_model(num_features: int, num_classes: int) -> keras.Model:
    sampler = tlo.samplers.LogUniform(1000)  # ids are sorted by falling frequency
    return keras.Sequential(
        [
            keras.Input((num_features,), sparse=True),
            tlo.layers.SparseDense(128, activation="relu"),
            tlo.heads.SampledHead(num_classes, sampler, tlo.optimizers.RowAdam(0.005)),
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=5)
    arguments = parser.parse_args()

    train, test = tf_idf(*load_wordnet("hyper"))
    model = build_model(train.num_features, train.num_labels)
    model.compile(
        tlo.optimizers.RowRMSprop(2e-3),
        loss=tlo.losses.ComplementarySum(),
        metrics=[tlo.metrics.PrecisionAtK(1), tlo.metrics.PrecisionAtK(5)],
    )
    model.fit(
        train.dataset(512, shuffle=True),
        validation_data=test.dataset(512),
        epochs=arguments.epochs,
        shuffle=False,  # the data set does it
        callbacks=[keras.callbacks.TensorBoard("runs/reverse_dictionary")],
    )

    answer(model, test)


def answer(model: keras.Model, test: SparseExamples, count: int = 8) -> None:
    """Prints some definitions (as bags of words) and the three best answers to each."""
    definition_words, words = wordnet_names("hyper")
    some = test.take(np.linspace(0, len(test) - 1, count).astype(int))
    batches = some.dataset(count)
    scores, ids = tlo.top_k_model(model, 3, activation="softmax").predict(batches, verbose=0)
    _, labels = next(iter(batches))
    for row in range(count):
        start, end = some.feature_splits[row : row + 2]
        print(f"\n{' '.join(definition_words[i] for i in some.feature_ids[start:end])}")
        print(f"  words:   {', '.join(words[c] for c in labels[row].numpy())}")
        best = zip(ids[row], scores[row], strict=True)
        print(f"  answers: {', '.join(f'{words[c]} {p:.0%}' for c, p in best)}")


if __name__ == "__main__":
    tf.get_logger().setLevel("ERROR")
    main()
