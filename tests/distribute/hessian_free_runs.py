# SPDX-License-Identifier: Apache-2.0
"""Hessian-free training of each kind; the same program for one process and for a worker.

As a program: python hessian_free_runs.py FOLDER some|every, with TF_CONFIG.
"""

from __future__ import annotations

import contextlib
import sys
import warnings
from pathlib import Path

import keras
import numpy as np

import tfx_largeout as tlo
from tfx_largeout.hessian_free import (
    DiagonalPreconditioner,
    FixedSample,
    GeometricSample,
    LBFGSPreconditioner,
    Trainer,
    VarianceSample,
)

WIDTH, CLASSES, EXAMPLES, LENGTH = 5, 4, 150, 3
RNG = np.random.default_rng(0)
X = RNG.normal(size=[EXAMPLES, WIDTH])
Y = (X[:, 0] > 0) + 2 * (X[:, 1] + X[:, 2] * X[:, 3] > 0)
WEIGHTS = np.where(RNG.uniform(size=EXAMPLES) < 0.1, 0, RNG.uniform(0.5, 1.5, EXAMPLES))
POSITIONS = RNG.normal(size=[60, LENGTH, 2]) * (RNG.uniform(size=[60, LENGTH, 1]) < 0.7)
LABELS = (POSITIONS.sum(axis=-1) > 0).astype(int)
TIMES = ("gradient_seconds", "cg_seconds", "line_search_seconds")


@contextlib.contextmanager
def float64():
    """Trains in float64, so that rounding errors stay small."""
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")
    try:
        yield
    finally:
        keras.config.set_floatx("float32")
        keras.config.set_dtype_policy("float32")


def compiled(layers, reduction="sum_over_batch_size", **arguments):
    model = keras.Sequential(layers)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=reduction)
    model.compile(loss=loss, **arguments)
    return model


def dense(units, activation=None, seed=0, **arguments):
    """Each worker starts with other weights; the weights of worker 0 are used."""
    seed = 10 * seed + tlo.distribute.current().rank
    initializer = keras.initializers.GlorotUniform(seed=seed)
    return keras.layers.Dense(units, activation, kernel_initializer=initializer, **arguments)


def model_of(**arguments):
    hidden = dense(7, "tanh", 1, kernel_regularizer="l2")
    return compiled([keras.Input([WIDTH]), hidden, dense(CLASSES, seed=2)], **arguments)


def normalised():
    """A model with weights that are not trained; worker 0's are used, too."""
    layers = [keras.Input([WIDTH]), dense(6, "tanh", 1), keras.layers.BatchNormalization()]
    model = compiled([*layers, dense(CLASSES, seed=2)], "mean_with_sample_weight")
    model.layers[1].moving_mean.assign(np.arange(6) * (0.1 + tlo.distribute.current().rank))
    return model


def recurrent():
    """Masked, and with products by two reverse passes."""
    layers = [keras.Input([LENGTH, 2]), keras.layers.Masking()]
    initializers = {
        "kernel_initializer": keras.initializers.GlorotUniform(seed=3),
        "recurrent_initializer": keras.initializers.Orthogonal(seed=5),
    }
    gru = keras.layers.GRU(4, return_sequences=True, **initializers)
    return compiled([*layers, gru, dense(2, seed=4)])


# With little damping conjugate gradients make large differences of rounding, in one process too.
TRAINERS = {
    "defaults": Trainer,
    "lbfgs": lambda: Trainer(
        LBFGSPreconditioner(8), GeometricSample(40, 1.2), GeometricSample(20, 1.3)
    ),
    "diagonal": lambda: Trainer(
        DiagonalPreconditioner(), VarianceSample(40, 0.5), VarianceSample(20, 1.0), damping=0.3
    ),
    "short_batches": lambda: Trainer(
        DiagonalPreconditioner(), VarianceSample(100, 0.9), FixedSample(90), batch_size=4
    ),
    "one_example": lambda: Trainer(None, FixedSample(40), FixedSample(1), damping=1.0, seed=3),
}


def trained(trainer, model, *data, epochs=6, **arguments):
    """Returns the result of a run: the weights, and the logs except for times."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of BatchNorm
        history = trainer.fit(model, *data, epochs=epochs, verbose=0, **arguments).history
    weights = np.concatenate([weight.ravel() for weight in model.get_weights()])
    logs = {name: np.array(values) for name, values in history.items() if name not in TIMES}
    return {"weights": weights, **logs}


def own_parts():
    """Each worker has a part of the data; one part is much smaller."""
    workers = tlo.distribute.current()
    most = 100 if workers.size > 1 else EXAMPLES
    ends = [0, *np.linspace(most, EXAMPLES, workers.size, dtype=int)]
    part = slice(*ends[workers.rank : workers.rank + 2])
    data = (X[part], Y[part], WEIGHTS[part])
    trainer = Trainer(cg_sample=FixedSample(1.0), damping=1.0)
    return trained(trainer, model_of(), *data, line_search_data=data, sharded=True)


class Killed(Exception):
    pass


class Kill(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        if epoch == 2:
            raise Killed


def resumed(folder: Path):
    """A run with `Checkpoint` that ends with an error, and is resumed."""
    checkpoint = tlo.callbacks.Checkpoint(folder)
    data = (X, Y, WEIGHTS)
    with contextlib.suppress(Killed):
        trained(TRAINERS["lbfgs"](), model_of(), *data, callbacks=[checkpoint, Kill()])
    checkpoint = tlo.callbacks.Checkpoint(folder)
    return trained(TRAINERS["lbfgs"](), model_of(), *data, callbacks=[checkpoint])


def goes_on_alone(folder: Path):
    """Two more iterations after `resumed`: without a break, and in [one process after workers]."""
    data, checkpoint = (X, Y, WEIGHTS), tlo.callbacks.Checkpoint(folder)
    with float64():
        whole = trained(TRAINERS["lbfgs"](), model_of(), *data, epochs=8)
        after = trained(TRAINERS["lbfgs"](), model_of(), *data, epochs=8, callbacks=[checkpoint])
    return whole, [after]


def continued(folder: Path):
    """A run of three iterations, a saved state, and three more iterations."""
    folder.mkdir(exist_ok=True)
    trainer, model, data = TRAINERS["diagonal"](), model_of(), (X, Y, WEIGHTS)
    trained(trainer, model, *data, epochs=3)
    trainer.save_state(folder / "state.npz")
    trainer = TRAINERS["diagonal"]()
    trainer.load_state(folder / "state.npz")
    return trained(trainer, model, *data, epochs=6, initial_epoch=3)


def some_runs(folder: Path):
    """Yields the name of a run, and its results."""
    data = (X, Y, WEIGHTS)
    with float64():
        for name in ("lbfgs", "diagonal"):
            yield name, trained(TRAINERS[name](), model_of(), *data)
        model, held_out = normalised(), (X[::3], Y[::3])
        yield "normalised", trained(TRAINERS["lbfgs"](), model, X, Y, line_search_data=held_out)
        model = model_of(metrics=["accuracy"])
        validation = {"validation_data": (X[:21], Y[:21])}
        yield "validation", trained(TRAINERS["defaults"](), model, *data, **validation)
        contradiction = {"line_search_data": (X, (Y + 2) % CLASSES)}
        trainer = Trainer(gradient_sample=FixedSample(60))
        yield "refused", trained(trainer, model_of(), X, Y, **contradiction)
        yield "own_parts", own_parts()
        yield "resumed", resumed(folder / "run")


def every_run(folder: Path):
    """The same, and more."""
    yield from some_runs(folder)
    data = (X, Y, WEIGHTS)
    with float64():
        for name in ("defaults", "short_batches", "one_example"):
            yield name, trained(TRAINERS[name](), model_of(), *data)
        yield "recurrent", trained(TRAINERS["lbfgs"](), recurrent(), POSITIONS, LABELS)
        yield "continued", continued(folder / "state")
    yield "float32", trained(TRAINERS["lbfgs"](), model_of(), *data)


RUNS = {"some": some_runs, "every": every_run}


def save(folder: Path, number: str, rank: int) -> None:
    for name, values in RUNS[number](folder):
        np.savez(folder / f"{name}-{rank}.npz", **values)
        print("ended", name, flush=True)


if __name__ == "__main__":
    rank = tlo.distribute.connect(timeout=180, step_timeout=120).rank
    save(Path(sys.argv[1]), sys.argv[2], rank)
