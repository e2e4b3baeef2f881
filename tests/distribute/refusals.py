# SPDX-License-Identifier: Apache-2.0
"""What workers refuse. As a program: python refusals.py FOLDER NAME..., with TF_CONFIG.

Each worker notes the errors that it gets, by the name of what is tried.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from unittest import mock

import keras
import numpy as np
import tensorflow as tf

import tfx_largeout as tlo
from tfx_largeout.distribute import Workers
from tfx_largeout.distribute.class_shards import replicated

WORKERS = tlo.distribute.connect(timeout=180, step_timeout=120)
RANK = WORKERS.rank
CLASSES = 20
X = np.random.default_rng(0).normal(size=[24, 4]).astype("float32")
Y = np.arange(24) % CLASSES


def sampled(classes=CLASSES, sampler=None, **arguments):
    arguments = {"seed": 1, "name": "head", **arguments}
    sampler = sampler or tlo.samplers.Uniform(5)
    return tlo.heads.SampledHead(classes, sampler, tlo.optimizers.RowSGD(0.1), **arguments)


def model_of(head, optimizer=None, loss=None, width=4, **arguments):
    keras.utils.set_random_seed(1)
    trunk = keras.layers.Dense(width, name="dense")
    model = keras.Sequential([keras.Input([4]), trunk, head])
    if optimizer is None:
        optimizer = tlo.distribute.DataParallel(keras.optimizers.SGD(0.1))
    model.compile(optimizer, loss or tlo.losses.ComplementarySum(), **arguments)
    return model


def batches(number=3):
    return tf.data.Dataset.from_tensor_slices((X, Y)).batch(8).take(number)


def fit(model, data=None, **arguments):
    model.fit(tlo.distribute.shard(batches()) if data is None else data, verbose=0, **arguments)


class Unmerged(tlo.losses.ComplementarySum):
    def from_statistics(self, statistics):
        return tf.reduce_sum(statistics.candidate_logits, axis=1)


class LooksAtW(tlo.samplers.Sampler):
    looks_at_weights = True


def other_index():
    """An index that is none of the head's knows of this worker's rows alone."""
    head = model_of(sampled()).layers[-1]
    index = tlo.indexes.HashIndex(tlo.indexes.SimHash(), hashes_per_table=2)
    index.rebuild(head.kernel)
    tlo.TopK(head, 2, index=index)(tf.constant(X))


def different_weights():
    """One worker sets a weight of its own."""
    model = model_of(sampled(), tlo.distribute.DataParallel("sgd", check_every=1))
    model.optimizer.build(model.trainable_variables)
    if RANK:
        replicated(model.trainable_variables)[0].assign(np.zeros([4, 4]))
    fit(model)


def unknown_length():
    """Worker 1 has a batch less, which no data set of unknown length tells beforehand."""
    data = batches(3 - RANK).filter(lambda x, y: True)
    fit(model_of(sampled()), tlo.distribute.shard(data))


def two_layers(width):
    keras.utils.set_random_seed(1)
    layers = [keras.layers.Dense(width, name="a"), keras.layers.Dense(4, name="b")]
    model = keras.Sequential([keras.Input([4]), *layers, sampled()])
    model.compile(tlo.distribute.DataParallel("sgd"), tlo.losses.ComplementarySum())
    return model


def few_classes():
    """Two workers can't spread one class; a head has two at least, so there are three here."""
    three = Workers(3, RANK)
    with mock.patch("tfx_largeout.heads.over_workers.current", lambda: three):
        model_of(sampled(2, tlo.samplers.Uniform(2)))


TRIED = {
    "classes": lambda: model_of(sampled(CLASSES + RANK)),
    "seed": lambda: model_of(sampled(seed=RANK)),
    "sampler": lambda: model_of(sampled(sampler=tlo.samplers.Uniform(5 + RANK))),
    "width": lambda: model_of(sampled(), width=4 + RANK),
    "few_classes": few_classes,
    "trunk": lambda: fit(two_layers(3 + RANK)),
    "optimizer": lambda: fit(
        model_of(sampled(), tlo.distribute.DataParallel(keras.optimizers.SGD(0.1 + 0.1 * RANK)))
    ),
    "no_data_parallel": lambda: fit(model_of(sampled(), keras.optimizers.SGD(0.1))),
    "batches": lambda: tlo.distribute.shard(batches(3 - RANK)),
    "dtype": lambda: tlo.distribute.shard(
        batches().map(lambda x, y: (tf.cast(x, tf.float64) if RANK else x, y))
    ),
    "no_batches": lambda: tlo.distribute.shard(tf.data.Dataset.range(5)),
    "no_data_set": lambda: tlo.distribute.shard(X),
    "hierarchical": lambda: model_of(
        tlo.heads.HierarchicalSoftmaxHead(CLASSES, optimizer=tlo.optimizers.RowSGD(0.1))
    ),
    "factored": lambda: model_of(tlo.heads.FactoredHead(CLASSES, learning_rate=0.1)),
    "sampler_of_w": lambda: model_of(sampled(sampler=LooksAtW())),
    "other_index": other_index,
    "logits": lambda: model_of(sampled()).predict(X, verbose=0),
    "eager": lambda: fit(model_of(sampled(), run_eagerly=True)),
    "save": lambda: model_of(sampled()).save_weights(sys.argv[1] + f"/{RANK}.weights.h5"),
    "unmerged_loss": lambda: fit(model_of(sampled(), loss=Unmerged())),
    "no_reduction": lambda: fit(
        model_of(sampled(), loss=tlo.losses.ComplementarySum(reduction="none"))
    ),
    "norms": lambda: fit(
        model_of(
            tlo.heads.DenseHead(CLASSES, name="head"),
            tlo.distribute.DataParallel(keras.optimizers.SGD(0.1, global_clipnorm=1.0)),
            tlo.losses.SoftmaxCrossentropy(),
        )
    ),
    "second_connect": lambda: tlo.distribute.connect(),
    "label": lambda: fit(
        model_of(sampled()), tf.data.Dataset.from_tensors((X, Y + CLASSES * RANK))
    ),
    "different_weights": different_weights,
    "unknown_length": unknown_length,
}


if __name__ == "__main__":
    found = {}
    for name in sys.argv[2:]:
        try:
            TRIED[name]()
            found[name] = "no error"
        except Exception as error:
            found[name] = f"{type(error).__name__}: {error}"
        print(name, found[name][:1500], flush=True)
    (Path(sys.argv[1]) / f"{RANK}.json").write_text(json.dumps(found))
