# SPDX-License-Identifier: Apache-2.0
"""Runs with `Checkpoint` that are interrupted and resumed, over workers and in one process.

As a program: python checkpoints.py FOLDER, with TF_CONFIG. Each worker writes its results.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import sys
import warnings
from pathlib import Path
from unittest import mock

import keras
import numpy as np
import tensorflow as tf

import tfx_largeout as tlo
from tfx_largeout.callbacks import Checkpoint, checkpoint_file
from tfx_largeout.callbacks.model_state import ModelState

CLASSES, WORDS, LENGTH, EXAMPLES, BATCH, EPOCHS, EVERY = 43, 20, 3, 46, 8, 3, 4
RNG = np.random.default_rng(0)
X = RNG.integers(0, WORDS, [EXAMPLES, LENGTH]).astype("int32")
Y = RNG.integers(0, CLASSES, EXAMPLES)


def of_epoch(epoch):
    """Six batches; the last one has 6 examples."""
    order = np.random.default_rng(epoch).permutation(EXAMPLES)
    return tf.data.Dataset.from_tensor_slices((X[order], Y[order])).batch(BATCH)


def model_of(kind, classes=CLASSES):
    """`dense` has dropout, with a seed per worker, and an embedding; `indexed` has hash tables.

    Its optimizer treats slices of gradients separately, but several workers add them up: so only
    `numbers`, without an embedding, is compared with one process.
    """
    keras.utils.set_random_seed(5 + tlo.distribute.current().rank)
    embedding = [keras.layers.Embedding(WORDS, 6), keras.layers.GlobalAveragePooling1D()]
    weights = {"kernel_initializer": keras.initializers.GlorotUniform(seed=3), "name": "head"}
    # With a small epsilon Adam makes large steps of gradients that are nothing but rounding.
    if kind in ("sampled", "indexed"):
        sampler, adam = tlo.samplers.LogUniform(12), tlo.optimizers.RowAdam(0.02, epsilon=1e-3)
        index = None
        if kind == "indexed":
            sampler = tlo.samplers.LSHEmbedding(12)
            index = tlo.indexes.HashIndex(tlo.indexes.SimHash(), 3, 5, first_period=4)
        head = tlo.heads.SampledHead(classes, sampler, adam, seed=7, index=index, **weights)
        optimizer = tlo.optimizers.RowAdam(0.02, epsilon=1e-3)
        below, loss = embedding, tlo.losses.ComplementarySum()
    elif kind == "factored":  # in steps that bring new anchors
        head = tlo.heads.FactoredHead(classes, 0.25, dtype="float64", **weights)
        optimizer, loss = keras.optimizers.SGD(0.02), tlo.losses.SquaredError()
        below = [keras.layers.Rescaling(1 / WORDS)]
    else:
        head, loss = tlo.heads.DenseHead(classes, **weights), tlo.losses.SoftmaxCrossentropy()
        optimizer = keras.optimizers.Adam(0.02, epsilon=1e-3)
        below = [keras.layers.Rescaling(1 / WORDS)]
        if kind == "dense":
            below = [*embedding, keras.layers.Dropout(0.3)]
    layers = [*below, keras.layers.Dense(5, "tanh"), head]
    model = keras.Sequential([keras.Input([LENGTH], dtype="int32"), *layers])
    model.compile(tlo.distribute.DataParallel(optimizer), loss)
    return model


class Killed(Exception):
    pass


class Kill(keras.callbacks.Callback):
    """Ends training with an error after `after` steps."""

    def __init__(self, after):
        super().__init__()
        self.left = after

    def on_train_batch_end(self, batch, logs=None):
        self.left -= 1
        if self.left == 0:
            raise Killed


def fit(model, folder, after=None, keep=3, of=of_epoch, called=()):
    """Trains to the end, or until it is killed; returns the history."""
    checkpoint = Checkpoint(folder, EVERY, keep)
    kill = [] if after is None else [Kill(after)]
    try:
        return model.fit(
            checkpoint.data(of),
            epochs=EPOCHS,
            shuffle=False,
            verbose=0,
            callbacks=[*called, checkpoint, *kill],
        ).history
    except Killed:
        return None


def state(model):
    """The arrays of a model by name; of W and its like, the rows that are here."""
    return {name: read() for name, read in ModelState(model).arrays()}


def assert_same(model, other):
    one, two = state(model), state(other)
    assert len(one) == len(two) > 10
    for name, array in one.items():
        np.testing.assert_array_equal(array, two[name], err_msg=name)


def copying_at_each_point(folder):
    """Copies a run whenever this worker is about to finish a file, and when it has finished it."""
    rank, replace, points = tlo.distribute.current().rank, checkpoint_file.os.replace, []

    def copy_if_there(source, target):
        with contextlib.suppress(FileNotFoundError):  # the other worker has finished it meanwhile
            shutil.copy(source, target)

    def replace_between_copies(source, target):
        for step in (lambda: None, lambda: replace(source, target)):
            step()
            copy = folder / "points" / f"{rank}-{len(points)}"
            shutil.copytree(Path(target).parent, copy, copy_function=copy_if_there)
            points.append(copy)

    return mock.patch.object(checkpoint_file.os, "replace", replace_between_copies)


def check_the_same_number_of_workers(folder):
    """Bit for bit; interrupted in the middle of epochs."""
    for kind in ("sampled", "dense", "indexed", "factored"):
        whole, model, run = model_of(kind), model_of(kind), folder / kind
        expected = fit(whole, folder / f"{kind}-of-both")
        fit(model_of(kind), run, 9)
        if kind == "sampled":
            if tlo.distribute.current().rank == 0:
                shutil.copytree(run, folder / "sampled-of-two")
            tlo.distribute.current().gather(tf.constant([0]), "copied")
            with copying_at_each_point(folder):
                fit(model_of(kind), run, 7, keep=1)
        tf.random.set_seed(99)
        assert fit(model, run) == expected
        assert_same(model, whole)
        np.savez(folder / f"{kind}-state-{tlo.distribute.current().rank}.npz", **state(whole))


def check_other_numbers_of_workers(folder):
    """The test compares these files with the files of one process."""
    fit(model_of("numbers"), folder / "numbers-of-two", 9)
    fit(model_of("factored"), folder / "factored-of-two", 9)
    for kind in ("sampled", "numbers", "factored"):
        model = model_of(kind)
        fit(model, folder / f"{kind}-of-one")
        if kind == "factored":
            assert len(set(model.layers[-1].state.row_slot.numpy())) > 2
        rank = tlo.distribute.current().rank
        np.savez(folder / f"{kind}-{rank}.npz", **rows_of(model.layers[-1]))


def rows_of(head):
    """The rows of W and b that are here."""
    if not isinstance(head, tlo.heads.FactoredHead):
        return {"kernel": head.kernel.numpy(), "bias": head.bias.numpy()}
    state = head.state
    assert max(head.drift()) < 1e-12  # and V is settled
    return {"kernel": state.v.numpy() @ state.u.numpy() + state.shift.numpy()}


def told(run):
    """The error of a run, and its warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            run()
            error = "no error"
        except Exception as raised:
            error = f"{type(raised).__name__}: {raised}"
    return [error, *(str(w.message) for w in caught if "checkpoint" in str(w.message))]


def check_refusals(folder):
    """Each on a copy of a run; its newest checkpoints are (3, 0) and (2, 4)."""
    rank, gather = tlo.distribute.current().rank, tlo.distribute.current().gather
    source, found = folder / "sampled-of-both", {}

    def flip(path):
        content = bytearray(path.read_bytes())
        content[len(content) // 3] ^= 8
        path.write_bytes(content)

    def begin(run):
        *_, older, newer = sorted(run.glob("*.npz"))
        return older, newer, sorted(run.glob(f"{newer.stem}-*.part"))

    def foreign(run):
        older, _, parts = begin(run)
        (other,) = run.glob(f"{older.stem}-*-1-of-2.part")
        shutil.copy(other, parts[1])

    def all_missing(run):
        for path in run.glob("*-1-of-2.part"):
            path.unlink()

    def full_disk():
        write = "tfx_largeout.callbacks.checkpoint_folder.write_checkpoint"
        error = OSError(28, "No space left on device") if rank else None
        with mock.patch(write, side_effect=error, wraps=None if rank else real_write):
            fit(model_of("sampled"), folder / "full", 5)

    real_write = checkpoint_file.write_checkpoint
    damages = {
        "flipped_part": lambda run: flip(begin(run)[2][1]),
        "missing_part": lambda run: begin(run)[2][1].unlink(),
        "foreign_part": foreign,
        "flipped_shared": lambda run: flip(begin(run)[1]),
        "all_missing": all_missing,
    }
    for name, damage in damages.items():
        run = folder / "refusals" / name
        if rank == 0:
            shutil.copytree(source, run)
            damage(run)
        gather(tf.constant([0]), "copied")
        found[name] = told(lambda r=run: fit(model_of("sampled"), r, 1))
        found[name].append(sorted(path.name for path in run.iterdir()))
        gather(tf.constant([0]), "seen")
    twice = lambda epoch: tlo.distribute.shard(of_epoch(epoch))  # noqa: E731
    others = {
        "classes": lambda: fit(model_of("sampled", CLASSES + 1), source),
        "head": lambda: fit(model_of("dense"), source),
        "data": lambda: fit(model_of("sampled"), source, of=lambda e: of_epoch(e + 1)),
        "parts_of_parts": lambda: fit(model_of("sampled"), folder / "twice", of=twice),
        "one_alone": lambda: model_of("sampled").fit(
            tlo.distribute.shard(of_epoch(0)),
            callbacks=[Checkpoint(folder / "alone")] if rank else [],
            verbose=0,
        ),
        "folders": lambda: fit(model_of("sampled"), source if rank else folder / "empty"),
        "full_disk": full_disk,
    }
    for name, run in others.items():
        found[name] = told(run)
    found["full_disk"].append([str(path) for path in (folder / "full").iterdir()])
    (folder / f"told-{rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    tlo.distribute.connect(timeout=180, step_timeout=120)
    for name, check in list(globals().items()):
        if name.startswith("check_"):
            check(Path(sys.argv[1]))
            print(name, flush=True)
