# SPDX-License-Identifier: Apache-2.0
"""The deep autoencoder of MNIST: squared error against seconds and data passes, by method.

    python benchmarks/deep_autoencoder.py --mnist mnist.npz --tune --seconds 25 --methods adam,sgd
    for method in plain PC-32 geometric "PC-32 + geometric" adam sgd; do
        python benchmarks/deep_autoencoder.py --mnist mnist.npz --seconds 3600 --methods "$method"
    done
    python benchmarks/deep_autoencoder.py --figure

The network of Hinton and Salakhutdinov 2006 and of Martens 2010, 784-1000-500-250-30 and back,
sigmoid except for the linear code, from Martens' sparse initial weights, with an L2 weight of 2e-5.
It is trained on the cross entropy of 60,000 images, which Keras averages over pixels; Martens' sums
are 784 times as large, and so are the L2 weight and the initial damping of 45.

- error: the sum of squared differences of an image's pixels, averaged over the first 10,000
  training images and over all test images.
- seconds: CPU time over all threads, without evaluation: others may use the machine.
- passes: examples that went through the network for any purpose (gradients, products, line search),
  divided by the size of the training set.
- damping: of the iteration, for the mean over pixels; 0 without damping.

`--tune` tries rates briefly; a run takes the rate with the least training error. Rows replace
earlier rows of the same method.
"""

from __future__ import annotations

import argparse
import csv
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import harness
import keras
import numpy as np
import tensorflow as tf
from hessian_free import FIGURES, SparseInitializer
from keras import layers

from tfx_largeout.hessian_free import FixedSample, GeometricSample, LBFGSPreconditioner, Trainer

RESULTS = harness.RESULTS / "deep_autoencoder.csv"
RATES = harness.RESULTS / "deep_autoencoder_rates.csv"
WIDTHS, PIXELS, TRAINING = [1000, 500, 250, 30], 784, 60000
L2, DAMPING = 2e-5 / PIXELS, 45 / PIXELS
BATCH, HF_BATCH = 200, 2000
LINE_SEARCH = 3000
EVALUATED = 10000
TRIED = {"adam": [3e-4, 1e-3, 3e-3], "sgd": [0.3, 1.0, 3.0, 10.0]}
MOMENTUM = 0.99
MEAN_IMAGE = 52.9  # the squared error of test images if the output is the mean training image


def autoencoder() -> keras.Model:
    """Returns the network, not compiled."""
    model = keras.Sequential([keras.Input((PIXELS,))])
    for units in [*WIDTHS, *WIDTHS[-2::-1], PIXELS]:
        model.add(
            layers.Dense(
                units,
                "linear" if units == WIDTHS[-1] else "sigmoid",
                kernel_initializer=SparseInitializer(),
                kernel_regularizer=keras.regularizers.L2(L2 / 2),
            )
        )
    return model


def optimizer(method: str, rate: float) -> keras.optimizers.Optimizer:
    """Returns the first-order method of a name."""
    if method == "adam":
        return keras.optimizers.Adam(rate)
    return keras.optimizers.SGD(rate, momentum=MOMENTUM, nesterov=True)


def trainers() -> dict[str, Callable[[], dict[str, Any]]]:
    """Returns the arguments of Trainer for each Hessian-free method."""

    def fixed() -> dict[str, Any]:
        return {"gradient_sample": FixedSample(0.5), "cg_sample": FixedSample(3000)}

    def geometric() -> dict[str, Any]:
        return {
            "gradient_sample": GeometricSample(0.1, 1.1, 0.5),
            "cg_sample": GeometricSample(1000, 1.1, 3000),
        }

    return {
        "plain": fixed,
        "PC-32": lambda: {"preconditioner": LBFGSPreconditioner(32), **fixed()},
        "geometric": geometric,
        "PC-32 + geometric": lambda: {"preconditioner": LBFGSPreconditioner(32), **geometric()},
    }


class Watch(keras.callbacks.Callback):
    """Evaluates after each epoch, with the clock stopped, and ends training when time is over."""

    def __init__(self, data: dict[str, np.ndarray], seconds: float) -> None:
        super().__init__()
        self.rows: list[dict[str, Any]] = []
        self._data, self._limit = data, seconds
        self._spent, self._wall_spent = 0.0, 0.0
        self._steps, self._cg_iterations, self._refused = 0, 0, 0

    def on_train_begin(self, logs: Any = None) -> None:
        self._look(0, {})
        self._resume()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._steps += 1

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._spent += time.process_time() - self._start
        self._wall_spent += time.perf_counter() - self._wall_start
        self._look(logs.get("data_points", self._steps * BATCH), logs)
        if self._spent >= self._limit or not np.isfinite(self.rows[-1]["training_error"]):
            self.model.stop_training = True
        self._resume()

    def _resume(self) -> None:
        self._start, self._wall_start = time.process_time(), time.perf_counter()

    def _look(self, data_points: float, logs: dict[str, Any]) -> None:
        self._cg_iterations += logs.get("cg_iterations", 0)
        self._refused += logs.get("step_size") == 0
        self.rows.append(
            {
                "seconds": round(self._spent, 1),
                "wall_seconds": round(self._wall_spent, 1),
                "passes": round(data_points / TRAINING, 3),
                "steps": self._steps,
                "refused": self._refused,
                "cg_iterations": self._cg_iterations,
                "damping": round(logs.get("damping", 0.0), 6),
                "training_error": squared_error(self.model, self._data["training"][:EVALUATED]),
                "test_error": squared_error(self.model, self._data["test"]),
            }
        )
        print(self.rows[-1], flush=True)


def squared_error(model: keras.Model, images: np.ndarray) -> float:
    """Returns the mean over images of the squared error, summed over pixels."""
    parts = [images[i : i + HF_BATCH] for i in range(0, len(images), HF_BATCH)]
    total = sum(float(tf.reduce_sum((model(part, training=False) - part) ** 2)) for part in parts)
    return round(total / len(images), 3)


def read(path: Path) -> dict[str, np.ndarray]:
    """Returns images `[N, 784]` in [0, 1], by part."""
    with np.load(path) as file:
        return {
            part: file[name].reshape(-1, PIXELS).astype("float32") / 255
            for part, name in (("training", "x_train"), ("test", "x_test"))
        }


def first_order_run(
    method: str, rate: float, data: dict[str, np.ndarray], seconds: float
) -> list[dict[str, Any]]:
    """Trains by an optimizer of Keras; an evaluation a pass."""
    keras.utils.set_random_seed(0)
    model = autoencoder()
    model.compile(optimizer(method, rate), loss="binary_crossentropy", jit_compile=False)
    images = tf.constant(data["training"])

    def batch(numbers: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        chosen = tf.gather(images, numbers)
        return chosen, chosen

    numbers = tf.data.Dataset.range(TRAINING).shuffle(TRAINING, 0).repeat().batch(BATCH)
    watch = Watch(data, seconds)
    model.fit(
        numbers.map(batch).prefetch(2),
        steps_per_epoch=TRAINING // BATCH,
        epochs=10**6,
        verbose=0,
        callbacks=[watch],
    )
    return watch.rows


def hessian_free_run(
    method: str, data: dict[str, np.ndarray], seconds: float
) -> list[dict[str, Any]]:
    """Trains by `Trainer`; an evaluation an iteration."""
    keras.utils.set_random_seed(0)
    model = autoencoder()
    model.compile(loss="binary_crossentropy")
    watch, images = Watch(data, seconds), data["training"]
    line_search = images[-LINE_SEARCH:]
    Trainer(damping=DAMPING, batch_size=HF_BATCH, **trainers()[method]()).fit(
        model,
        images,
        images,
        line_search_data=(line_search, line_search),
        epochs=10**6,
        verbose=0,
        callbacks=[watch],
    )
    return watch.rows


def tune(method: str, rates: list[float], data: dict[str, np.ndarray], seconds: float) -> None:
    """Writes a row for each rate."""
    for rate in rates:
        last = first_order_run(method, rate, data, seconds)[-1]
        names = ("seconds", "wall_seconds", "passes", "training_error", "test_error")
        row = {"method": method, "rate": rate, **{name: last[name] for name in names}}
        replace(RATES, {"method": method, "rate": rate}, [{**row, **harness.machine()}])


def best_rate(method: str) -> float:
    """Returns the rate with the least training error among those tried by `tune`."""
    rows = [row for row in rows_of(RATES) if row["method"] == method]
    return float(min(rows, key=lambda row: _or_infinity(row["training_error"]))["rate"])


def _or_infinity(value: str) -> float:
    return float(value) if np.isfinite(float(value)) else np.inf


def train(method: str, data: dict[str, np.ndarray], seconds: float) -> None:
    """Writes a row for each evaluation of a method."""
    rate: float | str = ""
    if method in TRIED:
        rate = best_rate(method)
        rows = first_order_run(method, rate, data, seconds)
    else:
        rows = hessian_free_run(method, data, seconds)
    columns = {"method": method, "rate": rate, "budget_seconds": seconds}
    rows = [{**columns, **row, **harness.machine()} for row in rows]
    replace(RESULTS, {"method": method}, rows)


def rows_of(path: Path) -> list[dict[str, Any]]:
    """Returns the rows of a CSV file, none if it is not there."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def replace(path: Path, key: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    """Writes rows into a CSV file in place of those with the same key."""
    others = [row for row in rows_of(path) if any(row[name] != str(key[name]) for name in key)]
    harness.write_csv(path, others + rows)


def figure() -> None:
    """Draws the test error against seconds and passes."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    rows = rows_of(RESULTS)
    shown, axes = pyplot.subplots(1, 2, figsize=(11, 4.5), layout="constrained", sharey=True)
    for axis, column in zip(axes, ("seconds", "passes"), strict=True):
        for method in dict.fromkeys(row["method"] for row in rows):
            curve = [row for row in rows if row["method"] == method and float(row[column])]
            places, errors = (
                [float(row[name]) for row in curve] for name in (column, "test_error")
            )
            axis.plot(places, errors, label=method, linewidth=1.4, marker=".", markersize=4)
        axis.set(xscale="log", yscale="log", ylim=(2.5, 80))
        axis.set_yticks([2.5, 5, 10, 20, 40, 80], labels=["2.5", "5", "10", "20", "40", "80"])
        axis.xaxis.set_major_formatter("{x:g}")
        axis.yaxis.set_minor_formatter("")
        axis.axhline(MEAN_IMAGE, color="grey", linestyle=":", label="the mean image")
        axis.grid(alpha=0.3, which="both")
    axes[0].set(xlabel="seconds of one core", ylabel="squared error of a test image")
    axes[1].set(xlabel="passes over the training set, for all purposes")
    axes[0].legend(fontsize=8)
    FIGURES.mkdir(exist_ok=True)
    shown.savefig(FIGURES / "deep_autoencoder.png", dpi=110)


def main() -> None:
    every = [*trainers(), *TRIED]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mnist", type=Path, help="mnist.npz: x_train and x_test, in 0 ... 255")
    parser.add_argument("--methods", default=",".join(every), help="separated by commas")
    parser.add_argument("--seconds", type=float, default=3600, help="for each method or rate")
    parser.add_argument("--tune", action="store_true", help="tries the rates of adam and sgd")
    parser.add_argument("--rates", help="to try, separated by commas; default those of TRIED")
    parser.add_argument("--figure", action="store_true", help="draws what the CSV file has")
    arguments = parser.parse_args()
    methods = arguments.methods.split(",")
    if unknown := [method for method in methods if method not in every]:
        parser.error(f"methods must be of {every}; got {unknown}")
    if arguments.figure:
        figure()
        return
    if arguments.mnist is None:
        parser.error("--mnist is needed but for --figure")
    data = read(arguments.mnist)
    for method in methods:
        if not arguments.tune:
            train(method, data, arguments.seconds)
        elif method in TRIED:
            tried = arguments.rates.split(",") if arguments.rates else TRIED[method]
            tune(method, [float(rate) for rate in tried], data, arguments.seconds)


if __name__ == "__main__":
    main()
