# SPDX-License-Identifier: Apache-2.0
"""Errors of workers. As a program: `python refusals.py FOLDER NAME...`, with TF_CONFIG.

Each worker records its errors, by the name of the case.
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
from tfx_largeout.distribute.class_shard import replicated
from tfx_largeout.distribute.workers import Workers

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
    """One worker changes a weight."""
    model = model_of(sampled(), tlo.distribute.DataParallel("sgd", check_every=1))
    model.optimizer.build(model.trainable_variables)
    if RANK:
        replicated(model.trainable_variables)[0].assign(np.zeros([4, 4]))
    fit(model)


def unknown_length():
    """Worker 1 has a batch less; a dataset of unknown length doesn't show it beforehand."""
    data = batches(3 - RANK).filter(lambda x, y: True)
    fit(model_of(sampled()), tlo.distribute.shard(data))


def two_layers(width):
    keras.utils.set_random_seed(1)
    layers = [keras.layers.Dense(width, name="a"), keras.layers.Dense(4, name="b")]
    model = keras.Sequential([keras.Input([4]), *layers, sampled()])
    model.compile(tlo.distribute.DataParallel("sgd"), tlo.losses.ComplementarySum())
    return model


def save_over():
    path, adam = Path(sys.argv[1]) / "x.weights.h5", keras.optimizers.Adam(0.1)
    tlo.save_model(model_of(sampled(), tlo.distribute.DataParallel(adam)), path)
    tlo.save_model(model_of(sampled()), path, overwrite=False)


def load_other_classes():
    """The file has 20 classes: each worker has 10 of them, and one has 10 of 21."""
    model_of(sampled(CLASSES + 1)).load_weights(Path(sys.argv[1]) / "x.weights.h5")


def few_classes():
    """Two workers can't spread one class; a head has two at least, so there are three here."""
    three = Workers(3, RANK)
    with mock.patch("tfx_largeout.heads.over_workers.current", lambda: three):
        model_of(sampled(2, tlo.samplers.Uniform(2)))


def plain(width=4, activation="tanh", loss="mse", **arguments):
    keras.utils.set_random_seed(RANK)
    layers = [keras.layers.Dense(width, activation), keras.layers.Dense(2)]
    model = keras.Sequential([keras.Input([4]), *layers])
    model.compile("sgd", loss, **arguments)
    return model


def free(model=None, x=X, y=X[:, :2], trainer=None, callback=None, **arguments):
    """Hessian-free training."""
    callbacks = [] if callback is None else [keras.callbacks.LambdaCallback(on_epoch_end=callback)]
    trainer = trainer or tlo.hessian_free.Trainer()
    model = model or plain()
    arguments = {"epochs": 2, "verbose": 0, **arguments}
    return trainer.fit(model, x, y, callbacks=callbacks, **arguments)


def free_trainer(**arguments):
    free(trainer=tlo.hessian_free.Trainer(**arguments))


def free_state():
    """One worker resumes from a state that the other does not have."""
    trainer = tlo.hessian_free.Trainer()
    other = tlo.hessian_free.Trainer()
    free(plain(), trainer=other)
    if RANK:
        trainer.set_state(other.get_state())
    free(trainer=trainer)


def free_weights():
    model = plain()
    free(model, callback=lambda epoch, logs: model.layers[0].bias.assign(np.full(4, float(RANK))))


def free_stop():
    model = plain()
    free(model, callback=lambda epoch, logs: setattr(model, "stop_training", RANK == 1))


def free_rate():
    model = plain()

    def slower(epoch, logs):
        model.optimizer.learning_rate = 0.01 / (1 + RANK)

    free(model, callback=slower)


def free_label():
    """A part of the examples has a label that is none."""
    model = plain(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    y = Y % 2
    free(model, y=y + 5 * RANK * (np.arange(24) == 3), line_search_data=(X, y), sharded=True)


def free_goes_on():
    """After all these errors the workers still train together."""
    assert free().history["step_size"][0] > 0


FREE = tlo.hessian_free
TRIED = {
    "free_head": lambda: free(model_of(tlo.heads.DenseHead(2, name="head"), "sgd", "mse")),
    "free_batch_size": lambda: free_trainer(batch_size=8 + RANK),
    "free_seed": lambda: free_trainer(seed=RANK),
    "free_cg": lambda: free_trainer(max_cg_iterations=5 + RANK),
    "free_damping": lambda: free_trainer(damping=1.0 + RANK),
    "free_sample": lambda: free_trainer(gradient_sample=FREE.GeometricSample(4, 1.1 + RANK)),
    "free_preconditioner": lambda: free_trainer(
        preconditioner=[FREE.IdentityPreconditioner(), FREE.DiagonalPreconditioner()][RANK]
    ),
    "free_split": lambda: free_trainer(line_search_split=0.1 + 0.1 * RANK),
    "free_epochs": lambda: free(epochs=2 + RANK),
    "free_no_epochs": lambda: free(epochs=2 - 3 * RANK),
    "free_sharded": lambda: free(sharded=RANK == 1),
    "free_examples": lambda: free(x=X[RANK:], y=X[RANK:, :2]),
    "free_values": lambda: free(y=X[:, :2] + 1e-6 * RANK),
    "free_order": lambda: free(x=X[:: 1 - 2 * RANK], y=X[:: 1 - 2 * RANK, :2]),
    "free_line_search": lambda: free(line_search_data=(X[RANK:], X[RANK:, :2])),
    "free_width": lambda: free(plain(4 + RANK)),
    "free_activation": lambda: free(plain(activation=["tanh", "sigmoid"][RANK])),
    "free_loss": lambda: free(
        plain(loss=keras.losses.MeanSquaredError(["sum_over_batch_size", "mean"][RANK]))
    ),
    "free_metrics": lambda: free(plain(metrics=["mae"] * RANK), validation_data=(X, X[:, :2])),
    "free_targets": lambda: free(y=X[: 24 - RANK, :2]),
    "free_dtype": lambda: free(y=X[:, :2].astype(["float32", "int32"][RANK]), sharded=True),
    "free_label": free_label,
    "free_validation": lambda: free(validation_data=(X[RANK::2], X[RANK::2, :2])),
    "free_one_validates": lambda: free(validation_data=(X, X[:, :2]) if RANK else None),
    "free_state": free_state,
    "free_weights": free_weights,
    "free_stop": free_stop,
    "free_rate": free_rate,
    "free_goes_on": free_goes_on,
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
    "batch_sizes": lambda: tlo.distribute.shard(
        tf.data.Dataset.from_tensor_slices((X, Y)).batch(9 + RANK).map(lambda x, y: (x, y))
    ),
    "dtype": lambda: tlo.distribute.shard(
        batches().map(lambda x, y: (tf.cast(x, tf.float64) if RANK else x, y))
    ),
    "no_batches": lambda: tlo.distribute.shard(tf.data.Dataset.range(5)),
    "no_data_set": lambda: tlo.distribute.shard(X),
    "hierarchical": lambda: model_of(
        tlo.heads.HierarchicalSoftmaxHead(CLASSES, optimizer=tlo.optimizers.RowSGD(0.1))
    ),
    "materialize": lambda: model_of(tlo.heads.FactoredHead(CLASSES, 0.1)).layers[-1].materialize(),
    "resize": lambda: tlo.resize_classes(model_of(sampled()), CLASSES + 1),
    "bad_hidden": lambda: fit(
        model_of(tlo.heads.FactoredHead(CLASSES, 0.1, name="head"), loss=tlo.losses.ZLoss()),
        tf.data.Dataset.from_tensors((X * (np.nan if RANK else 1), Y)),
    ),
    "sampler_of_w": lambda: model_of(sampled(sampler=LooksAtW())),
    "exact_softmax_sampler": lambda: model_of(sampled(sampler=tlo.samplers.ExactSoftmaxSampler(5))),
    "midx": lambda: model_of(sampled(sampler=tlo.samplers.MIDX(5, 3))),
    "inverted_multi_index": lambda: model_of(sampled(index=tlo.indexes.InvertedMultiIndex(3))),
    "in_batch": lambda: model_of(sampled(sampler=tlo.samplers.InBatch())),
    "other_index": other_index,
    "logits": lambda: model_of(sampled()).predict(X, verbose=0),
    "eager": lambda: fit(model_of(sampled(), run_eagerly=True)),
    "save": lambda: model_of(sampled()).save_weights(sys.argv[1] + f"/{RANK}.weights.h5"),
    "save_elsewhere": lambda: tlo.save_model(model_of(sampled()), f"{RANK}.keras"),
    "save_unwritable": lambda: tlo.save_model(
        model_of(sampled()), Path(sys.argv[1]) / "missing" / "x.keras"
    ),
    "save_over": save_over,
    "save_otherwise": lambda: tlo.save_model(model_of(sampled()), "x.h5"),
    "load_other_classes": load_other_classes,
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
    "norms_of_a_part": lambda: fit(
        model_of(
            tlo.heads.DenseHead(CLASSES, name="head"),
            tlo.distribute.DataParallel(
                keras.optimizers.MultiOptimizer(
                    keras.optimizers.OptimizerMap(
                        keras.optimizers.SGD(0.1), {".*/head/.*": keras.optimizers.Lamb(0.1)}
                    )
                )
            ),
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
