# SPDX-License-Identifier: Apache-2.0
"""The factored update against the naive layer: the same SGD step on squared error.

The claims: at C = 793,471, D = 300, B = 128 and one label per example, in a graph loop, a step is
at least 900 times as fast as TensorFlow's at its best; at C = 10,000,000 it takes at most 1.15
times as long as at C = 100,000. And one `fit` step of a whole model with two hidden layers of 300,
against the same model with a dense head (the paper's Table 1: 501 times).

    python benchmarks/factored_update.py             # all rows; 14 GB of memory, many minutes
    python benchmarks/factored_update.py --only claim
    python benchmarks/factored_update.py --quick     # small rows, nothing is written

A call runs many steps in one `tf.while_loop`, each with other labels, uniform over all classes, so
that rows come from main memory; methods take turns in one process. `current`: no target row is
stale, as before the first new anchor. `stale`: each is, and is converted when it is gathered.
`training`: likewise, and new anchors are set when needed, at 2 eta lambda_max = 0.02. Run it with
nothing else on the machine.
"""

from __future__ import annotations

import argparse
import functools
import os
from collections.abc import Callable
from typing import Any, NamedTuple

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import harness
import keras
import numpy as np
import tensorflow as tf

import tfx_largeout as tlo
from tfx_largeout.ops import library
from tfx_largeout.ops.factored.factored_update import (
    factored_statistics,
    factored_update,
)

HIDDEN_BATCHES = 16  # different hidden activations, used in turns
LABEL_BATCHES = 8192
STEPS_PER_EXECUTION = 16  # of Keras's `compile`
TRAINING_STEP = 0.02  # 2 eta lambda_max of a batch
TINY_STEP = 1e-4  # so small that no new anchor is set while the clock runs


class Setting(NamedTuple):
    """C, D and B."""

    classes: int
    width: int
    batch: int


CLAIM = Setting(793_471, 300, 128)
SMALL = Setting(20_000, 64, 32)
SWEEPS = {
    "classes": [Setting(c, 300, 128) for c in (10_000, 100_000, 1_000_000, 10_000_000)],
    "width": [Setting(100_000, d, 128) for d in (50, 100, 200, 300, 500, 1000, 2000)],
    "batch": [Setting(100_000, 300, b) for b in (1, 8, 32, 128, 256, 512, 2048)],
}


class Batches(NamedTuple):
    """Batches in one tensor each, and lambda_max of H^T H for one of them."""

    hidden: tf.Tensor  # [HIDDEN_BATCHES, B, D], positive as after a ReLU
    labels: tf.Tensor  # [LABEL_BATCHES, B]
    lambda_max: float

    @classmethod
    def of(cls, setting: Setting) -> Batches:
        generator = tf.random.Generator.from_seed(1)
        hidden = tf.nn.relu(generator.normal([HIDDEN_BATCHES, setting.batch, setting.width]))
        labels = generator.uniform([LABEL_BATCHES, setting.batch], 0, setting.classes, tf.int64)
        lambda_max = float(np.linalg.norm(hidden[0].numpy(), 2)) ** 2
        return cls(hidden, labels, lambda_max)

    def learning_rate(self, step: float) -> tf.Tensor:
        """Returns the eta at which 2 eta lambda_max is `step`."""
        return tf.constant(step / (2 * self.lambda_max))


class Loop:
    """Steps in a graph loop; each call continues where the previous call ended."""

    def __init__(self, batches: Batches, step: Callable[[tf.Tensor, tf.Tensor], tf.Tensor]) -> None:
        @tf.function
        def run(begin: tf.Tensor, end: tf.Tensor) -> tf.Tensor:
            def body(i: tf.Tensor, total: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
                gradient = step(
                    batches.hidden[i % HIDDEN_BATCHES], batches.labels[i % LABEL_BATCHES]
                )
                return i + 1, total + gradient[0, 0]

            start = (begin, tf.constant(0.0))
            return tf.while_loop(lambda i, _: i < end, body, start, parallel_iterations=1)[1]

        self._run = run
        self._done = 0

    def __call__(self, steps: int) -> None:
        """Runs steps and waits for the last."""
        begin, self._done = self._done, self._done + steps
        self._run(tf.constant(begin), tf.constant(self._done)).numpy()

    def steps_in(self, seconds: float) -> int:
        """Returns how many steps take about so long."""
        self(3)
        (of_five,) = harness.alternate({"": lambda: self(5)}, 3).values()
        return max(3, round(5 * seconds / of_five))


def factored_loop(
    setting: Setting, batches: Batches, stale: bool = False, size: float = TINY_STEP
) -> Loop:
    """Returns steps of the custom ops on a new layer."""
    head = tlo.heads.FactoredHead(setting.classes, 1.0)
    head.build((None, setting.width))
    state = head.state
    if stale:  # an empty step that asks for a new anchor
        nothing, no_labels = tf.zeros([0, setting.width]), tf.zeros([0, 1], tf.int64)
        no_gradients = nothing[:, :1], nothing[:, 0], nothing[:, 0]
        empty = (nothing, no_labels, nothing, nothing, no_gradients)
        factored_update(state, *empty, 0.0, 0.0, max_condition=0.0)
    batch, rate = setting.batch, batches.learning_rate(size)
    # sum_c o_c^2 - 2 a + 1: its gradients don't depend on the statistics.
    gradients = tf.fill([batch, 1], -2.0), tf.ones([batch]), tf.zeros([batch])

    def step(hidden: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        ids = labels[:, tf.newaxis]
        statistics = factored_statistics(state, hidden, ids, implementation="op")
        return factored_update(
            state,
            hidden,
            ids,
            statistics.gram_hidden,
            statistics.u_hidden,
            gradients,
            rate,
            tf.constant(0.0),
            implementation="op",
        )

    return Loop(batches, step)


def naive_loops(setting: Setting, batches: Batches) -> dict[str, Loop]:
    """Returns the naive step in the ways that a TensorFlow user would write it."""
    classes, width, batch = setting
    kernel = tf.Variable(tf.zeros([classes, width]))
    kernel.assign_add(tf.random.normal([classes, width], stddev=width**-0.5))
    rate = batches.learning_rate(TINY_STEP)

    def one_hot(hidden: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        logits = tf.matmul(hidden, kernel, transpose_b=True)
        error = 2 * (logits - tf.one_hot(labels, classes))
        gradient = tf.matmul(error, kernel)
        kernel.assign_sub(rate * tf.matmul(error, hidden, transpose_a=True))
        return gradient

    def scatter(hidden: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        logits = tf.matmul(hidden, kernel, transpose_b=True)
        places = tf.stack([tf.range(batch, dtype=tf.int64), labels], axis=1)
        error = tf.tensor_scatter_nd_sub(logits, places, tf.ones([batch]))
        gradient = 2 * tf.matmul(error, kernel)
        kernel.assign_sub(tf.matmul(error, 2 * rate * hidden, transpose_a=True))
        return gradient

    def rows(hidden: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        logits = tf.matmul(hidden, kernel, transpose_b=True)
        gradient = 2 * (tf.matmul(logits, kernel) - tf.gather(kernel, labels))
        kernel.assign_sub(tf.matmul(logits, 2 * rate * hidden, transpose_a=True))
        kernel.scatter_add(tf.IndexedSlices(2 * rate * hidden, labels))
        return gradient

    return {step.__name__: Loop(batches, step) for step in (one_hot, scatter, rows)}


def seconds_of_step(loops: dict[Any, Loop], repeats: int, call: float = 0.3) -> dict[Any, float]:
    """Returns the median seconds of a step of each; calls of about `call` seconds take turns."""
    steps = {name: loop.steps_in(call) for name, loop in loops.items()}
    sides: dict[Any, Callable[[], Any]] = {
        name: functools.partial(loops[name], steps[name]) for name in loops
    }
    return {name: time / steps[name] for name, time in harness.alternate(sides, repeats).items()}


def against_naive(setting: Setting, repeats: int) -> dict[str, Any]:
    """Returns the row of the claim."""
    batches = Batches.of(setting)
    naive = naive_loops(setting, batches)
    loops = {
        "current": factored_loop(setting, batches),
        "stale": factored_loop(setting, batches, stale=True),
        "training": factored_loop(setting, batches, stale=True, size=TRAINING_STEP),
        **naive,
    }
    seconds = seconds_of_step(loops, repeats)
    best = min(naive, key=lambda name: seconds[name])
    return {
        **setting._asdict(),
        "current_ms": round(1e3 * seconds["current"], 3),
        "stale_ms": round(1e3 * seconds["stale"], 3),
        "training_ms": round(1e3 * seconds["training"], 3),
        "naive": best,
        "naive_ms": round(1e3 * seconds[best], 1),
        "ratio": round(seconds[best] / seconds["current"]),
        "stale_ratio": round(seconds[best] / seconds["stale"]),
        "training_ratio": round(seconds[best] / seconds["training"]),
        **harness.machine(),
    }


def sweep(name: str, settings: list[Setting], repeats: int) -> list[dict[str, Any]]:
    """Returns a row a setting; all of them take turns."""
    loops: dict[Any, Loop] = {}
    for setting in settings:
        needed = setting.classes * setting.width * 4 / 2**20
        if needed > 0.8 * harness.available_mib():
            print(f"skipped for want of memory: {setting}")
            continue
        batches = Batches.of(setting)
        loops[setting, "current"] = factored_loop(setting, batches)
    seconds = seconds_of_step(loops, repeats)
    return [
        {
            "sweep": name,
            **setting._asdict(),
            "current_ms": round(1e3 * seconds[setting, "current"], 3),
            "us_of_example": round(1e6 * seconds[setting, "current"] / setting.batch, 2),
            **harness.machine(),
        }
        for setting, _ in loops
    ]


def phases(setting: Setting, repeats: int) -> list[dict[str, Any]]:
    """Returns a row a phase of the step, in the order of the alphabet."""
    run = factored_loop(setting, Batches.of(setting))
    steps = run.steps_in(0.3)
    module: Any = library.load()
    run(steps)
    module.tfx_phase_seconds(record=True)
    for _ in range(repeats):
        run(steps)
    names, seconds = module.tfx_phase_seconds(record=False)
    us_of_step = seconds.numpy() / (repeats * steps) * 1e6
    return [
        {
            "phase": name.decode(),
            **setting._asdict(),
            "us_of_step": round(float(us), 1),
            "share": round(float(us / us_of_step.sum()), 3),
            **harness.machine(),
        }
        for name, us in zip(names.numpy(), us_of_step, strict=True)
    ]


def batches_of_model(setting: Setting) -> tf.data.Dataset:
    """Returns batches for `fit`, without an end.

    Without autotuning of the data: its thread sleeps for times that double, and the end of `fit`
    waits until it wakes up, as long again as `fit` took at worst.
    """
    classes, width, batch = setting
    generator = tf.random.Generator.from_seed(1)
    inputs = generator.normal([16, batch, width])
    labels = generator.uniform([16, batch], 0, classes, tf.int64)
    options = tf.data.Options()
    options.autotune.enabled = False
    data = tf.data.Dataset.from_tensor_slices((inputs, labels)).repeat().prefetch(4)
    return data.with_options(options)


def model_with(head: keras.Layer, loss: Any, width: int, executions: int = 1) -> keras.Model:
    """Returns a compiled model of two hidden layers and a head."""
    layers = [keras.layers.Dense(width, "tanh") for _ in range(2)]
    result = keras.Sequential([keras.Input((width,)), *layers, head])
    result.compile(keras.optimizers.SGD(1e-4), loss, steps_per_execution=executions)
    return result


def whole_model(setting: Setting, repeats: int) -> dict[str, Any]:
    """Returns the row of `fit` on two hidden layers, with the factored and with a dense head.

    The factored head also with several steps an execution: Keras's own time a step is then less.
    """
    classes, width, _ = setting
    data, loss = batches_of_model(setting), tlo.losses.SquaredError()

    def factored() -> keras.Layer:
        return tlo.heads.FactoredHead(classes, 1e-4)

    models = {
        "factored": model_with(factored(), loss, width),
        "executions": model_with(factored(), loss, width, STEPS_PER_EXECUTION),
        "naive": model_with(tlo.heads.DenseHead(classes, use_bias=False), loss, width),
    }
    steps = {"factored": 200, "executions": 200, "naive": 2}
    sides: dict[str, Callable[[], Any]] = {
        name: functools.partial(model.fit, data, steps_per_epoch=steps[name], verbose=0)
        for name, model in models.items()
    }
    seconds = harness.alternate(sides, repeats)
    of_step = {name: seconds[name] / steps[name] for name in models}
    return {
        **setting._asdict(),
        "hidden_layers": 2,
        "factored_ms": round(1e3 * of_step["factored"], 2),
        "steps_per_execution": STEPS_PER_EXECUTION,
        "executions_ms": round(1e3 * of_step["executions"], 2),
        "naive_ms": round(1e3 * of_step["naive"], 1),
        "ratio": round(of_step["naive"] / of_step["factored"]),
        "executions_ratio": round(of_step["naive"] / of_step["executions"]),
        "paper_ratio": 501,
        **harness.machine(),
    }


def main() -> None:
    """Parses the command line and runs the parts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small rows, no CSV")
    parser.add_argument("--only", choices=["claim", "phases", "model", *SWEEPS])
    parser.add_argument("--repeats", type=int, default=7)
    arguments = parser.parse_args()
    setting, repeats = (SMALL, 2) if arguments.quick else (CLAIM, arguments.repeats)

    def report(name: str, rows: list[dict[str, Any]]) -> None:
        for row in rows:
            print({key: row[key] for key in list(row)[: -len(harness.machine())]}, flush=True)
        if not arguments.quick:
            harness.write_csv(harness.RESULTS / f"factored_update_{name}.csv", rows)

    wanted = [arguments.only] if arguments.only else ["claim", "phases", "model", *SWEEPS]
    for part in wanted:
        if part == "claim":
            report(part, [against_naive(setting, repeats)])
        elif part == "phases":
            report(part, phases(setting, repeats))
        elif part == "model":
            report(part, [whole_model(setting, repeats)])
        else:
            settings = [s for s in SWEEPS[part] if not arguments.quick or s.classes <= 100_000]
            report(part, sweep(part, settings, repeats))


if __name__ == "__main__":
    main()
