# SPDX-License-Identifier: Apache-2.0
"""Hessian-free training: cost of a product, iterations saved, data accessed, and the paper's table.

    python benchmarks/hessian_free.py --only products
    python benchmarks/hessian_free.py --only system    --fsdd fsdd_frames.npz
    python benchmarks/hessian_free.py --only training  --fsdd fsdd_frames.npz
    python benchmarks/hessian_free.py --only training  --curves curves.npz
    python benchmarks/hessian_free.py --only training  --mnist mnist.npz
    python benchmarks/hessian_free.py --only training  --network wide
    python benchmarks/hessian_free.py --only sampling
    python benchmarks/hessian_free.py --only figures

- products: seconds of a Gauss-Newton product divided by seconds of a gradient, on the same batch.
- system: a fixed matrix B of the FSDD network, half trained; conjugate gradients on B d = -g
  without a preconditioner, then with pairs of this run, for the same g and for another sample's g.
- training: the paper's table. A method runs until the held-out loss reaches the network's target,
  or its time is over (`--seconds`); Adam with the best of a list of learning rates.
- sampling: from the rows of training (`--seed 0` and `--seed 1`): examples that went through the
  FSDD network until the held-out loss was 1, with fixed, geometric and variance samples.
- figures: PNGs from the CSV files.

Rows of `training` replace earlier rows of the same network, method and seed, so that methods can be
run one at a time (`--methods`). Inputs are files of arrays; docs/extras/hessian_free.md has their
sources; `--quick` writes nothing.
"""

from __future__ import annotations

import argparse
import csv
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import harness
import keras
import numpy as np
import tensorflow as tf
from keras import layers

import tfx_largeout as tlo
from tfx_largeout import datasets
from tfx_largeout.hessian_free import (
    DiagonalPreconditioner,
    FixedSample,
    GeometricSample,
    LBFGSPreconditioner,
    Trainer,
    VarianceSample,
)
from tfx_largeout.hessian_free.conjugate_gradient import conjugate_gradient
from tfx_largeout.hessian_free.curvature import Curvature
from tfx_largeout.hessian_free.examples import Examples
from tfx_largeout.hessian_free.line_search import LevenbergMarquardt
from tfx_largeout.hessian_free.worker import LocalWorker

FIGURES = Path(__file__).parents[1] / "docs" / "figures"
ADAM_RATES = [3e-4, 1e-3, 3e-3, 1e-2]
ADAM_BATCH, ADAM_STEPS = 128, 100
COUNTS = (16, 32, 64)
THETA, CG_THETA = 1.5, 8.0
GEOMETRIC_FIRST, VARIANCE_FIRST, GRADIENT_CAP = 0.05, 0.02, 0.4
QUICK = False


class Network(NamedTuple):
    """A problem: data in three parts, a model, and the runs."""

    name: str
    training: tuple[np.ndarray, np.ndarray]
    held_out: tuple[np.ndarray, np.ndarray]  # of the line search, and of the target
    test: tuple[np.ndarray, np.ndarray]
    make: Callable[[], keras.Model]
    target: float
    seconds: float  # for a method that does not reach the target
    damping: float
    cg_share: float  # of the examples, for fixed samples and as the cap of others
    first_cg_share: float  # at which growing samples start
    batch_size: int = 4096


class LiteralDamping(LevenbergMarquardt):
    """Algorithm 1 as it is printed: both signs wrong, so that each success lowers the damping."""

    def after_step(self, damping: float, rho: float) -> float:
        printed = -rho
        if printed < 0.25:
            return damping * 2 / 3
        return damping * 1.5 if printed > 0.75 else damping


def fsdd(path: Path) -> Network:
    """Frames of spoken digits: 11 frames of 24 filters -> 30 states, 4 sigmoid layers of 128."""
    with np.load(path) as file:
        data = dict(file)
    x, y, utterance = data["x"].astype("float32"), data["y"].astype("int32"), data["utt"]
    x = (x - x.mean(axis=0)) / x.std(axis=0)
    first = np.searchsorted(utterance, utterance, "left")
    last = np.searchsorted(utterance, utterance, "right") - 1
    place = np.arange(len(x))
    x = np.concatenate([x[np.clip(place + i, first, last)] for i in range(-5, 6)], axis=1)
    take = data["take"][utterance]  # of 50 recordings of each digit by each speaker
    parts = [(x[chosen], y[chosen]) for chosen in (take >= 10, (take >= 5) & (take < 10), take < 5)]
    parts[1] = (parts[1][0][::4], parts[1][1][::4])
    make = _classifier(264, [128] * 4, 30)
    return Network("fsdd", *parts, make, 1.0, 60, 0.03, 0.01, 0.001)


def curves(path: Path) -> Network:
    """The autoencoder of synthetic curves, 784-400-200-100-50-25-6 and back."""
    with np.load(path) as file:
        data = {name: file[name].reshape(-1, 784).astype("float32") / 255 for name in file}
    x, test = data["x_train"], data["x_test"]
    parts = [(part, part) for part in (x[2000:], x[:2000], test)]
    make = _autoencoder([400, 200, 100, 50, 25, 6])
    return Network("curves", *parts, make, 0.0, 60, 1e-3, 0.05, 0.01, 2048)


def mnist(path: Path) -> Network:
    """The autoencoder of digits, 784-1000-500-250-30 and back."""
    with np.load(path) as file:
        x, test = (file[n].reshape(-1, 784).astype("float32") / 255 for n in ("x_train", "x_test"))
    parts = [(part, part) for part in (x[2000:22000], x[:2000], test)]
    make = _autoencoder([1000, 500, 250, 30])
    return Network("mnist", *parts, make, 0.0, 75, 1e-3, 0.05, 0.01, 2048)


def wide() -> Network:
    """The shipped WordNet data: 5,000 labels, bags of words -> 64 tanh -> DenseHead."""
    classes, length = 5000, 24
    examples = datasets.load_wordnet("hyper")
    words = examples[0].num_features + 1
    counts = np.bincount(_first_labels(examples[0]), minlength=examples[0].num_labels)
    rank = np.full(len(counts), -1)
    rank[np.argsort(-counts, kind="stable")[:classes]] = np.arange(classes)
    parts = []
    for part in examples:
        labels, ids = rank[_first_labels(part)], _padded_words(part, length)
        kept = (labels >= 0) & (ids[:, 0] > 0)
        parts.append((ids[kept], labels[kept].astype("int32")))
    order = np.random.default_rng(0).permutation(len(parts[0][0]))[:32000]
    (x, y), test = (array[order] for array in parts[0]), parts[1]

    def make() -> keras.Model:
        model = keras.Sequential(
            [
                keras.Input((length,), dtype="int32"),
                layers.Embedding(words, 64, mask_zero=True),
                layers.GlobalAveragePooling1D(),
                layers.Dense(64, "tanh"),
                tlo.heads.DenseHead(classes),
            ]
        )
        model.compile(loss=tlo.losses.SoftmaxCrossentropy())
        return model

    training, held_out = (x[2000:], y[2000:]), (x[:2000], y[:2000])
    return Network("wide", training, held_out, test, make, 0.0, 45, 1e-3, 0.05, 0.01, 1024)


def _first_labels(examples: Any) -> np.ndarray:
    return examples.label_ids[examples.label_splits[:-1]]


def _padded_words(examples: Any, length: int) -> np.ndarray:
    """The first words of each example, counted from 1, padded with 0."""
    starts, ends = examples.feature_splits[:-1, None], examples.feature_splits[1:, None]
    places = starts + np.arange(length)
    words = examples.feature_ids[np.minimum(places, len(examples.feature_ids) - 1)] + 1
    return np.where(places < ends, words, 0).astype("int32")


def _initializer() -> Any:
    """Glorot and Bengio's for sigmoids: four times as wide as that for tanh."""
    return keras.initializers.VarianceScaling(16, "fan_avg", "uniform")


def _classifier(inputs: int, hidden: list[int], classes: int) -> Callable[[], keras.Model]:
    def make() -> keras.Model:
        model = keras.Sequential([keras.Input((inputs,))])
        for units in hidden:
            model.add(layers.Dense(units, "sigmoid", kernel_initializer=_initializer()))
        model.add(layers.Dense(classes))
        model.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        return model

    return make


class SparseInitializer(keras.initializers.Initializer):
    """Martens' initializer: 15 normal weights into each unit, the others 0."""

    def __call__(self, shape: tuple[int, int], dtype: Any = None) -> np.ndarray:
        weights = np.zeros(shape, dtype or "float32")
        for unit in range(shape[1]):
            chosen = np.random.choice(shape[0], min(15, shape[0]), replace=False)
            weights[chosen, unit] = np.random.normal(size=len(chosen))
        return weights


def _autoencoder(widths: list[int]) -> Callable[[], keras.Model]:
    def make() -> keras.Model:
        model = keras.Sequential([keras.Input((784,))])
        for units in [*widths, *widths[-2::-1], 784]:
            activation = "linear" if units == widths[-1] else "sigmoid"
            model.add(layers.Dense(units, activation, kernel_initializer=SparseInitializer()))
        model.compile(loss="binary_crossentropy")
        return model

    return make


Settings = dict[str, Any]


def trainers(network: Network) -> dict[str, Callable[[], Settings]]:
    """Returns the arguments of Trainer for each method of the table."""
    n = network
    fixed = {"cg_sample": FixedSample(n.cg_share)}

    def geometric() -> Settings:
        return {
            "gradient_sample": GeometricSample(GEOMETRIC_FIRST, 1.2, GRADIENT_CAP),
            "cg_sample": GeometricSample(n.first_cg_share, 1.3, n.cg_share),
        }

    def variance() -> Settings:
        return {
            "gradient_sample": VarianceSample(VARIANCE_FIRST, THETA, GRADIENT_CAP),
            "cg_sample": VarianceSample(n.first_cg_share, CG_THETA, n.cg_share),
        }

    return {
        "noPC": lambda: fixed,
        "PC-16": lambda: {"preconditioner": LBFGSPreconditioner(16), **fixed},
        "PC-32": lambda: {"preconditioner": LBFGSPreconditioner(32), **fixed},
        "PC-64": lambda: {"preconditioner": LBFGSPreconditioner(64), **fixed},
        "diagonal": lambda: {"preconditioner": DiagonalPreconditioner(), **fixed},
        "geometric": geometric,
        "variance": variance,
        "PC-32 + geometric": lambda: {"preconditioner": LBFGSPreconditioner(32), **geometric()},
        "PC-32 + variance": lambda: {"preconditioner": LBFGSPreconditioner(32), **variance()},
        "literal Algorithm 1": lambda: {"damping": LiteralDamping(n.damping), **fixed},
    }


class Stop(keras.callbacks.Callback):
    """Ends training at a held-out loss or after a time; keeps the logs and the clock."""

    def __init__(self, target: float, seconds: float) -> None:
        super().__init__()
        self.target, self.limit, self.rows = target, seconds, []
        self.start = time.perf_counter()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        elapsed = time.perf_counter() - self.start
        self.rows.append({**logs, "elapsed": elapsed})
        if logs["line_search_loss"] <= self.target or elapsed >= self.limit:
            self.model.stop_training = True


def hessian_free_run(
    network: Network, settings: Settings, seed: int, seconds: float
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Trains by one method; returns its row of the table, and the logs of its iterations."""
    keras.utils.set_random_seed(seed)
    model = network.make()
    arguments = {"damping": network.damping, "batch_size": network.batch_size, **settings}
    stop = Stop(network.target, seconds)
    Trainer(seed=seed, **arguments).fit(
        model,
        *network.training,
        line_search_data=network.held_out,
        epochs=10**6,
        verbose=0,
        callbacks=[stop],
    )
    rows = stop.rows

    def total(name: str) -> float:
        return sum(row[name] for row in rows)

    summary = {
        "loss": round(rows[-1]["line_search_loss"], 4),
        "test_loss": round(test_loss(model, network), 4),
        "hf_iterations": len(rows),
        "refused": sum(row["step_size"] == 0 for row in rows),
        "cg_iterations": int(total("cg_iterations")),
        "cg_seconds": round(total("cg_seconds"), 1),
        "seconds": round(rows[-1]["elapsed"], 1),
        "gradient_points": int(total("gradient_points")),
        "cg_points": int(total("cg_points")),
        "line_search_points": int(total("line_search_points")),
        "data_points": int(rows[-1]["data_points"]),
    }
    return summary, rows


def adam_run(
    network: Network, rate: float, seed: int, seconds: float
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Trains by Keras's Adam, and measures the held-out loss every 100 steps.

    The row is of the measurement with the least loss.
    """
    keras.utils.set_random_seed(seed)
    model = network.make()
    model.compile(keras.optimizers.Adam(rate), loss=model.loss)
    x, y = network.training
    order = np.random.default_rng(seed).permutation(len(x))
    part = tf.data.Dataset.from_tensor_slices((x[order], y[order]))
    part = part.shuffle(20000, seed).repeat().batch(ADAM_BATCH).prefetch(2)
    rows: list[dict[str, Any]] = []
    best: dict[str, Any] = {}
    start = time.perf_counter()

    def look(epoch: int, logs: Any) -> None:
        loss = model.evaluate(*network.held_out, batch_size=network.batch_size, verbose=0)
        elapsed = time.perf_counter() - start
        points = (epoch + 1) * ADAM_STEPS * ADAM_BATCH
        rows.append({"line_search_loss": loss, "elapsed": elapsed, "data_points": points})
        if not best or loss < best["line_search_loss"]:
            best.update(rows[-1], weights=model.get_weights())
        if loss <= network.target or elapsed >= seconds or not np.isfinite(loss):
            model.stop_training = True

    look_callback = keras.callbacks.LambdaCallback(on_epoch_end=look)
    model.fit(
        part,
        steps_per_epoch=ADAM_STEPS,
        epochs=10**6,
        shuffle=False,
        verbose=0,
        callbacks=[look_callback],
    )
    model.set_weights(best["weights"])
    summary = {
        "loss": round(best["line_search_loss"], 4),
        "test_loss": round(test_loss(model, network), 4),
        "hf_iterations": "",
        "refused": "",
        "cg_iterations": "",
        "cg_seconds": "",
        "seconds": round(best["elapsed"], 1),
        "gradient_points": best["data_points"],
        "cg_points": 0,
        "line_search_points": 0,
        "data_points": best["data_points"],
    }
    return summary, rows


def test_loss(model: keras.Model, network: Network) -> float:
    """Returns the mean loss of the test examples."""
    x, y = (part[:5000] for part in network.test)
    return model.evaluate(x, y, batch_size=network.batch_size, verbose=0)


def training_rows(network: Network, chosen: list[str], seed: int, seconds: float) -> None:
    """Runs methods of the table, writing each as it ends."""
    for name, settings in trainers(network).items():
        if name in chosen:
            report(network, name, seed, *hessian_free_run(network, settings(), seed, seconds))
    if "adam" in chosen:
        tried = {}
        for rate in ADAM_RATES:  # briefly, then the best one alone
            summary, rows = adam_run(network, rate, seed, seconds / 8)
            tried[rate] = (summary["loss"] > network.target, rows[-1]["elapsed"], summary["loss"])
            print({"adam": rate, **summary})
        best = min(tried, key=lambda rate: _rank(tried[rate]))
        report(network, f"adam {best:g}", seed, *adam_run(network, best, seed, seconds))


def _rank(outcome: tuple[bool, float, float]) -> tuple[bool, float]:
    """Targets that were reached first, by time; then the others, by loss."""
    missed, elapsed, loss = outcome
    return missed, (loss if np.isfinite(loss) else np.inf) if missed else elapsed


def report(
    network: Network, method: str, seed: int, summary: dict[str, Any], rows: list[dict[str, Any]]
) -> None:
    """Prints a row; replaces it, and its curve, in the CSV files."""
    key = {"network": network.name, "method": method, "seed": seed}
    print({**key, **summary}, flush=True)
    if not QUICK:
        replace("hessian_free_training.csv", key, [{**key, **summary, **harness.machine()}])
        names = ("elapsed", "data_points", "line_search_loss")
        points = [{name: round(row[name], 4) for name in names} for row in _thinned(rows)]
        replace("hessian_free_curves.csv", key, [{**key, **point} for point in points])


def _thinned(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return rows if len(rows) <= 60 else rows[:: len(rows) // 60] + rows[-1:]


def replace(file: str, key: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    """Writes rows into a CSV file in place of those with the same key; Adam has one rate alone."""
    path, wanted = harness.RESULTS / file, {name: str(value) for name, value in key.items()}
    old: list[dict[str, Any]] = []
    if path.exists():
        with path.open(newline="") as opened:
            old = list(csv.DictReader(opened))
    wanted["method"] = (
        wanted["method"].split()[0] if "adam" in wanted["method"] else (wanted["method"])
    )

    def is_other(row: dict[str, Any]) -> bool:
        row = {**row, "method": "adam" if row["method"].startswith("adam") else row["method"]}
        return any(row[name] != value for name, value in wanted.items())

    harness.write_csv(path, [row for row in old if is_other(row)] + rows)


def product_rows() -> list[dict[str, Any]]:
    """Times a product against a gradient of the same batch."""
    generator = np.random.default_rng(0)
    lstm = keras.Sequential(
        [keras.Input((20, 24)), layers.LSTM(64, use_cudnn=False), layers.Dense(30)]
    )
    lstm.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    head = keras.Sequential(
        [keras.Input((64,)), layers.Dense(64, "tanh"), tlo.heads.DenseHead(10000)]
    )
    head.compile(loss=tlo.losses.SoftmaxCrossentropy())
    networks = {
        "264-4x128-30": (_classifier(264, [128] * 4, 30)(), (264,), 30, 4096),
        "784-1000-500-250-30 autoencoder": (
            _autoencoder([1000, 500, 250, 30])(), (784,), None, 1024,
        ),
        "64-64-DenseHead(10000)": (head, (64,), 10000, 1024),
        "LSTM(64) over 20 steps": (lstm, (20, 24), 30, 512),
    }  # fmt: skip
    rows = []
    for name, (model, shape, classes, batch) in networks.items():
        x = generator.random((batch, *shape)).astype("float32")
        y = x if classes is None else generator.integers(0, classes, batch)
        examples = Examples(x, y)
        curvature = Curvature(model, examples.spec)
        data = examples.take(np.arange(batch))
        vector = tf.random.normal([curvature.parameters.size])
        seconds = harness.alternate(
            {
                "gradient": lambda c=curvature, d=data: c.gradient(*d).vector.numpy(),
                "product": lambda c=curvature, d=data, v=vector: c.product(*d, v).vector.numpy(),
            },
            repeats=15,
        )
        rows.append(
            {
                "network": name,
                "weights": curvature.parameters.size,
                "batch": batch,
                "mode": curvature.mode,
                "gradient_ms": round(1e3 * seconds["gradient"], 2),
                "product_ms": round(1e3 * seconds["product"], 2),
                "ratio": round(seconds["product"] / seconds["gradient"], 2),
                **harness.machine(),
            }
        )
        print(rows[-1], flush=True)
    return rows


def system_rows(network: Network) -> list[dict[str, Any]]:
    """Solves one system without a preconditioner, then again with pairs of the run before."""
    keras.utils.set_random_seed(0)
    model = network.make()
    Trainer(cg_sample=FixedSample(0.02), damping=network.damping, batch_size=4096).fit(
        model, *network.training, line_search_data=network.held_out, epochs=15, verbose=0
    )
    examples = Examples(*network.training)
    worker = LocalWorker(Curvature(model, examples.spec), examples, 4096)
    first, other = (
        -total.vector / total.weight
        for total in (worker.gradient(np.arange(i, len(examples), 10)) for i in (0, 5))
    )
    worker.hold(np.arange(0, len(examples), 50))
    rows = []
    for damping in (3e-3, 1e-3):

        def product(vector: tf.Tensor, damping: float = damping) -> tf.Tensor:
            total = worker.product(vector)
            return total.vector / total.weight + damping * vector

        runs = {count: conjugate_gradient(product, first, num_pairs=count)[1] for count in COUNTS}
        for side, b in {"the same": first, "of another sample": other}.items():
            _, plain = conjugate_gradient(product, b)
            columns = {"network": network.name, "damping": damping, "right_side": side}
            rows.append(_system_row({**columns, "method": "noPC"}, plain, plain))
            for count, before in runs.items():
                preconditioner = LBFGSPreconditioner(count)
                preconditioner.observe(before.pairs, damping)
                preconditioner.prepare(damping)
                _, run = conjugate_gradient(product, b, preconditioner=preconditioner)
                rows.append(_system_row({**columns, "method": f"PC-{count}"}, run, plain))
    return rows


def _system_row(columns: dict[str, Any], run: Any, plain: Any) -> dict[str, Any]:
    row = {
        **columns,
        "iterations": run.iterations,
        "ratio": round(run.iterations / plain.iterations, 3),
        "q": f"{run.values[-1]:.6g}",
        "iterations_to_q_of_noPC": _iterations_to(run.values, plain.values[-1]),
        "stop": run.reason,
    }
    print(row, flush=True)
    return row


def _iterations_to(values: list[float], wanted: float) -> int | str:
    """The first iteration at which q is as low as wanted, to a tenth of a percent."""
    good = [i for i, value in enumerate(values) if value <= 0.999 * wanted]
    return good[0] if good else ""


def sampling_rows() -> list[dict[str, Any]]:
    """Returns the examples that methods needed to the target, by the rows of `training`."""
    with (harness.RESULTS / "hessian_free_training.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["network"] == "fsdd"]
    fixed = {row["seed"]: int(row["data_points"]) for row in rows if row["method"] == "noPC"}
    names = ("seed", "loss", "hf_iterations", "gradient_points", "cg_points", "line_search_points")
    return [
        {
            "network": row["network"],
            "samples": row["method"].replace("noPC", "fixed"),
            **{name: row[name] for name in names},
            "data_points": row["data_points"],
            "times_less": round(fixed[row["seed"]] / int(row["data_points"]), 2),
        }
        for row in rows
        if row["method"] in ("noPC", "geometric", "variance")
    ]


def figures() -> None:
    """Draws the held-out loss against data and time, a row of plots a network."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    with (harness.RESULTS / "hessian_free_curves.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["seed"] == "0"]
    names = list(dict.fromkeys(row["network"] for row in rows))
    figure, axes = pyplot.subplots(
        len(names), 2, figsize=(11, 3.6 * len(names)), squeeze=False, layout="constrained"
    )
    methods = sorted({row["method"].split(" 0")[0] for row in rows})
    colours = {method: pyplot.get_cmap("tab20")(i) for i, method in enumerate(methods)}
    for name, (by_data, by_time) in zip(names, axes, strict=True):
        of_network = [row for row in rows if row["network"] == name]
        for method in dict.fromkeys(row["method"] for row in of_network):
            curve = [row for row in of_network if row["method"] == method]
            losses = [float(row["line_search_loss"]) for row in curve]
            for axis, column in ((by_data, "data_points"), (by_time, "elapsed")):
                places = [float(row[column]) for row in curve]
                colour = colours[method.split(" 0")[0]]
                axis.plot(places, losses, label=method, color=colour, linewidth=1.2)
        by_data.set(xlabel="data points", ylabel=f"{name}: held-out loss", xscale="log")
        by_time.set(xlabel="seconds", xscale="log")
        by_time.legend(fontsize=7)
    FIGURES.mkdir(exist_ok=True)
    figure.savefig(FIGURES / "hessian_free.png", dpi=110)


def main() -> None:
    global QUICK
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", required=True, choices=PARTS, help="the part to run")
    parser.add_argument("--fsdd", type=Path, help="fsdd_frames.npz")
    parser.add_argument("--curves", type=Path, help="curves.npz")
    parser.add_argument("--mnist", type=Path, help="mnist.npz")
    parser.add_argument("--network", choices=["wide"], help="one that needs no file")
    parser.add_argument("--methods", help="of the table, separated by commas; default all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, help="for a method of the table, at most")
    parser.add_argument("--quick", action="store_true", help="a second each; nothing is written")
    arguments = parser.parse_args()
    QUICK = arguments.quick
    PARTS[arguments.only](arguments)


def _networks(arguments: argparse.Namespace) -> list[Network]:
    files = {fsdd: arguments.fsdd, curves: arguments.curves, mnist: arguments.mnist}
    networks = [make(path) for make, path in files.items() if path is not None]
    return networks + ([wide()] if arguments.network == "wide" else [])


def _run_training(arguments: argparse.Namespace) -> None:
    for network in _networks(arguments):
        every = [*trainers(network), "adam"]
        chosen = arguments.methods.split(",") if arguments.methods else every
        seconds = 1.0 if QUICK else arguments.seconds or network.seconds
        training_rows(network, chosen, arguments.seed, seconds)


def _write(file: str, rows: list[dict[str, Any]]) -> None:
    if not QUICK:
        harness.write_csv(harness.RESULTS / file, rows)


PARTS: dict[str, Callable[[argparse.Namespace], None]] = {
    "products": lambda arguments: _write("hessian_free_products.csv", product_rows()),
    "system": lambda arguments: _write(
        "hessian_free_system.csv",
        [row for network in _networks(arguments) for row in system_rows(network)],
    ),
    "sampling": lambda arguments: _write("hessian_free_sampling.csv", sampling_rows()),
    "training": _run_training,
    "figures": lambda arguments: figures(),
}

if __name__ == "__main__":
    main()
