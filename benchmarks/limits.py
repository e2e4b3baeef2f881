# SPDX-License-Identifier: Apache-2.0
"""The minimal work of a step, at the speed of this machine, compared with its time.

    python benchmarks/limits.py                     # writes results/limits.csv; ten minutes
    python benchmarks/limits.py --only products     # exact softmax, also with AVX2 alone
    python benchmarks/limits.py --quick             # small, nothing is written

Each row has a count of FLOP, bytes or calls, and the speed of this work on this machine, measured
in turns with the step by TensorFlow's ops. `least_ms` is the count at this speed, and `ratio` is
the time of the step divided by it.

*products*: an exact softmax step of `backward="all"` has four products of 2 B C D FLOP (logits, for
log Z and again for the gradient, which are not kept; dL/dh; dL/dW); TensorFlow's has three, and
keeps the logits. The speed is measured with `tf.matmul` at these shapes. *rows*: a step of
candidates reads rows of W, for logits, and reads and writes W and Adam's m and v; the speed is
measured by reading random rows with `tf.gather`. *one_example*: a factored step of B = 1 reads U, P
and Q, and then reads and writes each; the speed is measured with `tf.linalg.matvec`, which reads
one matrix. *fit*: a step of a model takes at least as long as `fit` for the same trunk with one
output, plus the ops of the head. *query*: one query of an inverted file, and a call of a graph with
one op.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
from collections.abc import Callable
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import exact_softmax
import factored_update
import harness
import keras
import numpy as np
import sampled_head
import tensorflow as tf

import tfx_largeout as tlo

AVX2 = {"TFX_LARGEOUT_ISA": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"}
Row = dict[str, Any]


def row_of(step: str, setting: Any, count: str, number: float, speed: float, ms: float) -> Row:
    """Returns a row; the speed is in counts a millisecond."""
    least = number / speed
    row = {"step": step, "setting": setting, "count": count, "number": f"{number:.4g}"}
    row |= {"per_ms": f"{speed:.4g}", "least_ms": round(least, 4), "ms": round(ms, 4)}
    return row | {"ratio": round(ms / least, 2)}


def products(quick: bool, repeats: int) -> list[Row]:
    """The exact softmax of all classes."""
    classes, width, batch = (5_000, 32, 64) if quick else (139_536, 128, 512)
    setting = exact_softmax.Setting(classes, width, batch, "zipf")
    makers = exact_softmax.make_heads(classes)
    wanted = {"all": 4, "full_softmax_fused": 3}
    steps = {name: exact_softmax.make_step(name, makers[name](), setting) for name in wanted}
    hidden, kernel = tf.random.normal([batch, width]), tf.random.normal([classes, width])
    logits = tf.random.normal([batch, classes])
    three = {
        "logits": lambda: tf.matmul(hidden, kernel, transpose_b=True)[0, 0],
        "of_hidden": lambda: tf.matmul(logits, kernel)[0, 0],
        "of_kernel": lambda: tf.matmul(logits, hidden, transpose_a=True)[0, 0],
    }
    for name, product in three.items():
        run = tf.function(product, autograph=False)
        steps[name] = lambda run=run: run().numpy()
    ms = {name: 1e3 * s for name, s in harness.alternate(steps, repeats).items()}
    flop = 2.0 * batch * classes * width
    speed = flop / min(ms[name] for name in three)
    named = f"C = {classes}, D = {width}, B = {batch}"
    return [
        row_of(f"exact softmax: {name}", named, "FLOP", number * flop, speed, ms[name])
        for name, number in wanted.items()
    ]


def rows(quick: bool, repeats: int) -> list[Row]:
    """Candidates of each example, and shared ones."""
    classes, width, batch = (10_000, 32, 64) if quick else (1_000_000, 64, 128)
    found = []
    for candidates, own in ((100, True), (1000, False)):
        setting = sampled_head.Setting(classes, width, batch, candidates, own)
        kernel = sampled_head.Layer.of([classes, width])
        bias = sampled_head.Layer.of([classes])
        step = sampled_head.op_step(kernel, bias)
        touched = batch + (batch if own else 1) * candidates
        draws = tf.constant(np.random.default_rng(0).integers(0, classes, (256, touched)))
        gather = lambda batch, kernel=kernel, draws=draws: tf.gather(  # noqa: E731
            kernel.weight, draws[tf.cast(tf.reduce_sum(batch.labels) % 256, tf.int32)]
        )
        batches = sampled_head.batches(setting)
        loops = {"step": sampled_head.Loop(batches, step)}
        loops["gather"] = sampled_head.Loop(batches, gather)
        ms = ms_of_loops(loops, repeats)
        size = 4.0 * touched * width
        named = f"C = {classes}, D = {width}, B = {batch}, S = {candidates}, "
        named += "per example" if own else "shared"
        found.append(
            row_of("candidates", named, "bytes", 7 * size, size / ms["gather"], ms["step"])
        )
    return found


def one_example(quick: bool, repeats: int) -> list[Row]:
    """A factored step of B = 1."""
    setting = factored_update.Setting(*((10_000, 64, 1) if quick else (100_000, 300, 1)))
    batches = factored_update.Batches.of(setting)
    width = setting.width
    matrices = [tf.random.normal([width, width]) for _ in range(3)]  # as many as U, P and Q

    def read(hidden: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        return tf.add_n([tf.matmul(hidden, matrix, transpose_b=True) for matrix in matrices])

    loops = {
        "step": factored_update.factored_loop(setting, batches),
        "read": factored_update.Loop(batches, read),
    }
    ms = ms_of_loops(loops, repeats)
    matrix = 4.0 * width**2
    named = f"C = {setting.classes}, D = {width}, B = 1"
    return [row_of("factored", named, "bytes", 9 * matrix, 3 * matrix / ms["read"], ms["step"])]


def fit(quick: bool, repeats: int) -> list[Row]:
    """`fit` of the model of `factored_update.py`, with 16 steps an execution and one."""
    setting = factored_update.SMALL if quick else factored_update.CLAIM
    classes, width, batch = setting
    data = factored_update.batches_of_model(setting)
    steps, sides = 20 if quick else 200, {}
    for executions in (1, 16):
        head = tlo.heads.FactoredHead(classes, 1e-4)
        for name, made in (
            ("factored", (head, tlo.losses.SquaredError())),
            ("trunk", (keras.layers.Dense(1), "mse")),
        ):
            model = factored_update.model_with(*made, width, executions)
            sides[name, executions] = functools.partial(
                model.fit, data, steps_per_epoch=steps, verbose=0
            )
    seconds = harness.alternate(sides, repeats)
    loop = factored_update.factored_loop(setting, factored_update.Batches.of(setting))
    (of_op,) = ms_of_loops({"op": loop}, repeats).values()
    found = []
    for executions in (1, 16):
        ms, trunk = (1e3 * seconds[name, executions] / steps for name in ("factored", "trunk"))
        named = f"C = {classes}, D = {width}, B = {batch}, {executions} steps an execution"
        number, speed = trunk + of_op, 1.0
        found.append(row_of("fit, factored", named, "ms of trunk and op", number, speed, ms))
    return found


def query(quick: bool, repeats: int) -> list[Row]:
    """One query of an inverted file, as a function of a graph."""
    classes, width, calls = (10_000, 32, 20) if quick else (1_000_000, 64, 200)
    rng = np.random.default_rng(0)
    centers = rng.normal(size=(1000, width))
    kernel = centers[rng.integers(0, 1000, classes)] + 0.5 * rng.normal(size=(classes, width))
    index = tlo.indexes.InvertedFile(num_probed=15)
    kernel = tf.Variable(kernel.astype("float32"))
    index.build((classes, width))
    index.rebuild(kernel)
    hidden = tf.constant(rng.normal(size=(1, width)).astype("float32"))
    search = tf.function(lambda h: index.top_k(h, kernel, None, 10)[1], autograph=False)
    nothing = tf.function(lambda h: h + 1.0, autograph=False)
    (lists, number_of_lists) = 15, index.num_lists or round(classes**0.5)
    looked_at = number_of_lists * 4.0 * width + classes * lists / number_of_lists * width
    block = tf.random.uniform([round(looked_at / 4)])
    read = tf.function(lambda h: tf.reduce_sum(block), autograph=False)

    def times(call: Callable[[tf.Tensor], tf.Tensor]) -> Callable[[], None]:
        return lambda: [call(hidden).numpy() for _ in range(calls)] and None

    sides = {"search": times(search), "nothing": times(nothing), "read": times(read)}
    ms = {name: 1e3 * s / calls for name, s in harness.alternate(sides, repeats).items()}
    named = f"C = {classes}, D = {width}, {lists} of {number_of_lists} lists"
    return [
        row_of("inverted file", named, "calls of a graph", 1, 1 / ms["nothing"], ms["search"]),
        row_of("inverted file", named, "bytes", looked_at, looked_at / ms["read"], ms["search"]),
    ]


def ms_of_loops(loops: dict[str, Any], repeats: int) -> dict[str, float]:
    """Returns the median milliseconds of a step; calls of about 0.3 seconds take turns."""
    steps = {name: loop.steps_in(0.3) for name, loop in loops.items()}
    sides = {name: functools.partial(loops[name], steps[name]) for name in loops}
    return {name: 1e3 * s / steps[name] for name, s in harness.alternate(sides, repeats).items()}


PARTS = {part.__name__: part for part in (products, rows, one_example, fit, query)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=PARTS)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        found = PARTS[arguments.only](arguments.quick, arguments.repeats)
        print(json.dumps([row | harness.machine() for row in found]))
        return
    every: list[Row] = []
    for part in [arguments.only] if arguments.only else PARTS:
        words = ["--child", "--only", part, "--repeats", str(arguments.repeats)]
        words += ["--quick"] * arguments.quick
        for environment in [{}, AVX2] if part == "products" else [{}]:
            os.environ.update(environment)
            every += json.loads(harness.in_child(*words))
            for name in environment:
                del os.environ[name]
    for row in every:
        print(row)
    if not (arguments.quick or arguments.only):
        harness.write_csv(harness.RESULTS / "limits.csv", every)


if __name__ == "__main__":
    main()
