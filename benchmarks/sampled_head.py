# SPDX-License-Identifier: Apache-2.0
"""The ops of the sampled head against TensorFlow's own ops, at their best.

The claims: with Adam, shared candidates, C = 1,000,000, D = 64, B = 128, S = 1000 and one label per
example, logits and update take at most 1 / 1.5 of the time of TensorFlow's ops that touch only the
same rows; at C = 10,000,000 they take at most 1.5 times as long as at C = 100,000. With candidates
per example, they take at most half the time of gather, einsum and scatter.

    python benchmarks/sampled_head.py            # all rows; 9 GB of memory, a few minutes
    python benchmarks/sampled_head.py --only classes
    python benchmarks/sampled_head.py --quick    # small rows, nothing is written

A call runs many steps in one `tf.while_loop`, each with other labels and candidates, uniform over
all classes, so that rows come from main memory. Methods take turns in one process, on the same
variables. `least_ms` is the longer of two times: only the products, at the speed of TensorFlow's
largest ones, and only the memory accesses to rows, at the speed of the memory. Run it with nothing
else on the machine.
"""

from __future__ import annotations

import argparse
import functools
import os
from collections.abc import Callable
from typing import Any, NamedTuple

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import harness
import numpy as np
import tensorflow as tf

from tfx_largeout.ops.candidates.candidate_logits import candidate_logits
from tfx_largeout.ops.candidates.candidate_update import candidate_update
from tfx_largeout.ops.rows.row_rule import RowRule

DRAWS = 256  # of labels and candidates, used in turns
RULE = RowRule("adam", (0.9, 0.999, 1e-7))
RATE = 1e-3


class Setting(NamedTuple):
    """Sizes of the layer, the batch, and the candidates; `own`: S candidates per example."""

    classes: int
    width: int
    batch: int
    candidates: int
    own: bool


CLAIM = Setting(1_000_000, 64, 128, 1000, False)
SMALL = Setting(20_000, 32, 16, 100, False)
SETTINGS = {
    "classes": [CLAIM._replace(classes=c) for c in (100_000, 1_000_000, 10_000_000)],
    "candidates": [CLAIM._replace(candidates=s) for s in (100, 300, 3000)],
    "own": [CLAIM._replace(own=True, candidates=s) for s in (100, 300, 1000)],
    "amazon_670k": [
        Setting(670_091, 128, 256, 30_000, False),
        Setting(670_091, 128, 256, 3_800, True),
        Setting(670_091, 128, 1024, 30_000, False),
        Setting(670_091, 128, 1024, 3_800, True),
    ],
}


class Layer(NamedTuple):
    """A weight and Adam's slots of it."""

    weight: tf.Variable
    m: tf.Variable
    v: tf.Variable
    age: tf.Variable

    @classmethod
    def of(cls, shape: list[int]) -> Layer:
        return cls(
            tf.Variable(tf.fill(shape, 0.01)),
            tf.Variable(tf.zeros(shape)),
            tf.Variable(tf.zeros(shape)),
            tf.Variable(tf.zeros(shape[:1], tf.uint32)),
        )

    @property
    def slots(self) -> list[tf.Variable]:
        return [self.m, self.v, self.age]


class Batch(NamedTuple):
    """The inputs of a step: gradients don't depend on the logits."""

    hidden: tf.Tensor
    labels: tf.Tensor  # [N, 1]
    candidates: tf.Tensor
    true_gradient: tf.Tensor
    gradient: tf.Tensor


Step = Callable[[Batch], tf.Tensor]


def batches(setting: Setting) -> Callable[[tf.Tensor], Batch]:
    """Returns a function from the number of a step to its batch."""
    rng = np.random.default_rng(1)
    classes, _, batch, num_candidates, own = setting
    draws = max(1, min(DRAWS, 2**26 // (num_candidates * (batch if own else 1))))
    labels = tf.constant(rng.integers(0, classes, (DRAWS, batch, 1)))
    shape = (draws, batch, num_candidates) if own else (draws, num_candidates)
    candidates = tf.constant(rng.integers(0, classes, shape))
    hidden = tf.random.normal([batch, setting.width])
    true_gradient = tf.random.normal([batch, 1]) / batch
    gradient = tf.random.normal([batch, num_candidates]) / batch

    def of(step: tf.Tensor) -> Batch:
        ids = labels[step % DRAWS], candidates[step % draws]
        return Batch(hidden, *ids, true_gradient, gradient)

    return of


def op_step(kernel: Layer, bias: Layer) -> Step:
    """Returns a step of the custom ops."""

    def step(batch: Batch) -> tf.Tensor:
        weights, inputs = (kernel.weight, bias.weight), batch[:3]
        logits = candidate_logits(*weights, *inputs, implementation="op")
        with tf.control_dependencies(logits):
            return candidate_update(
                *weights,
                kernel.slots,
                bias.slots,
                *batch,
                RULE,
                RATE,
                implementation="op",
            )

    return step


def shared_step(kernel: Layer, bias: Layer) -> Step:
    """Returns a step of TensorFlow's ops with shared candidates: matmul, on touched rows alone."""

    def step(batch: Batch) -> tf.Tensor:
        num_examples = batch.hidden.shape[0]
        ids = tf.concat([batch.labels[:, 0], batch.candidates], axis=0)
        rows, biases = tf.gather(kernel.weight, ids), tf.gather(bias.weight, ids)
        true_rows, rows = rows[:num_examples], rows[num_examples:]
        true_logits = tf.reduce_sum(true_rows * batch.hidden, axis=1) + biases[:num_examples]
        logits = tf.matmul(batch.hidden, rows, transpose_b=True) + biases[num_examples:]
        hits = batch.labels == batch.candidates
        hidden_gradient = tf.matmul(batch.gradient, rows) + batch.true_gradient * true_rows
        by_id = tf.concat(
            [
                batch.true_gradient * batch.hidden,
                tf.matmul(batch.gradient, batch.hidden, transpose_a=True),
            ],
            axis=0,
        )
        bias_by_id = tf.concat(
            [batch.true_gradient[:, 0], tf.reduce_sum(batch.gradient, axis=0)], axis=0
        )
        unique, places = tf.unique(ids)
        size = tf.size(unique)
        with tf.control_dependencies([hidden_gradient, logits, true_logits, hits]):
            adam(kernel, unique, tf.math.unsorted_segment_sum(by_id, places, size))
            adam(bias, unique, tf.math.unsorted_segment_sum(bias_by_id, places, size))
        return hidden_gradient

    return step


def own_step(kernel: Layer, bias: Layer) -> Step:
    """Returns a step of TensorFlow's ops with candidates per example."""

    def step(batch: Batch) -> tf.Tensor:
        ids = tf.concat([batch.labels, batch.candidates], axis=1)
        gradient = tf.concat([batch.true_gradient, batch.gradient], axis=1)
        rows, biases = tf.gather(kernel.weight, ids), tf.gather(bias.weight, ids)
        logits = tf.einsum("nsd,nd->ns", rows, batch.hidden) + biases
        hits = batch.labels == batch.candidates
        hidden_gradient = tf.einsum("ns,nsd->nd", gradient, rows)
        by_id = gradient[:, :, tf.newaxis] * batch.hidden[:, tf.newaxis]
        unique, places = tf.unique(tf.reshape(ids, [-1]))
        size = tf.size(unique)
        by_id = tf.reshape(by_id, [-1, batch.hidden.shape[1]])
        with tf.control_dependencies([hidden_gradient, logits, hits]):
            adam(kernel, unique, tf.math.unsorted_segment_sum(by_id, places, size))
            bias_by_id = tf.reshape(gradient, [-1])
            adam(bias, unique, tf.math.unsorted_segment_sum(bias_by_id, places, size))
        return hidden_gradient

    return step


def adam(layer: Layer, ids: tf.Tensor, gradient: tf.Tensor) -> None:
    """Adam on rows, as one would write it in TensorFlow."""
    beta_1, beta_2, epsilon = RULE.hyperparameters
    age = tf.gather(layer.age, ids) + 1
    t = tf.cast(age, tf.float32)
    rate = RATE * tf.sqrt(1 - beta_2**t) / (1 - beta_1**t)
    m = beta_1 * tf.gather(layer.m, ids) + (1 - beta_1) * gradient
    v = beta_2 * tf.gather(layer.v, ids) + (1 - beta_2) * gradient**2
    if m.shape.rank == 2:
        rate = rate[:, tf.newaxis]
    change = rate * m / (tf.sqrt(v) + epsilon)
    for variable, values in ((layer.m, m), (layer.v, v), (layer.age, age)):
        tf.raw_ops.ResourceScatterUpdate(resource=variable.handle, indices=ids, updates=values)
    tf.raw_ops.ResourceScatterSub(resource=layer.weight.handle, indices=ids, updates=change)


class Loop:
    """Steps in a graph loop; each call continues where the previous call ended."""

    def __init__(self, batch_of: Callable[[tf.Tensor], Batch], step: Step) -> None:
        @tf.function(autograph=False)
        def run(begin: tf.Tensor, end: tf.Tensor) -> tf.Tensor:
            def body(i: tf.Tensor, total: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
                return i + 1, total + step(batch_of(i))[0, 0]

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
        self(2)
        (of_three,) = harness.alternate({"": lambda: self(3)}, 2).values()
        return max(2, round(3 * seconds / of_three))


def against_tensorflow(setting: Setting, limits: Limits, repeats: int) -> dict[str, Any]:
    """Returns a row: milliseconds of a step of both sides, and of the least that it can take."""
    kernel, bias = Layer.of([setting.classes, setting.width]), Layer.of([setting.classes])
    batch_of = batches(setting)
    tensorflow_step = own_step if setting.own else shared_step
    loops = {
        "op": Loop(batch_of, op_step(kernel, bias)),
        "tensorflow": Loop(batch_of, tensorflow_step(kernel, bias)),
    }
    steps = {name: loop.steps_in(0.4) for name, loop in loops.items()}
    sides: dict[str, Callable[[], Any]] = {
        name: functools.partial(loops[name], steps[name]) for name in loops
    }
    times = harness.alternate(sides, repeats)
    milliseconds = {name: 1e3 * time / steps[name] for name, time in times.items()}
    return {
        **setting._asdict(),
        "op_ms": round(milliseconds["op"], 3),
        "tensorflow_ms": round(milliseconds["tensorflow"], 3),
        "ratio": round(milliseconds["tensorflow"] / milliseconds["op"], 2),
        "least_ms": round(limits.least_ms(setting), 3),
        **harness.machine(),
    }


class Limits(NamedTuple):
    """The speed of this machine: FLOP per second in large products, bytes per second of memory."""

    flop: float
    bandwidth: float

    @classmethod
    def measured(cls) -> Limits:
        factor = tf.random.normal([4096, 4096])
        product = tf.function(lambda: tf.matmul(factor, factor))
        weights, change = tf.Variable(tf.zeros([2**27])), tf.zeros([2**27])

        @tf.function
        def descend() -> None:  # reads two arrays, writes one
            handle = weights.handle
            tf.raw_ops.ResourceApplyGradientDescent(var=handle, alpha=0.1, delta=change)

        seconds = harness.alternate({"product": lambda: product()[0, 0].numpy(), "sum": descend}, 5)
        return cls(2 * 4096**3 / seconds["product"], 3 * 4 * 2**27 / seconds["sum"])

    def least_ms(self, setting: Setting) -> float:
        """Returns milliseconds that a step takes at least."""
        entries = setting.batch * setting.candidates
        drawn = setting.batch + (entries if setting.own else setting.candidates)
        rows = setting.classes * -np.expm1(drawn * np.log1p(-1 / setting.classes))
        # W for the logits; then W, m and v are read and written. Of an entry: logit, hit, gradient.
        row_bytes = 4 * 7 * setting.width
        entry_bytes = 4 + 1 + 4 + (2 * 8 if setting.own else 0)
        memory = (rows * row_bytes + entries * entry_bytes) / self.bandwidth
        return 1e3 * max(6 * entries * setting.width / self.flop, memory)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=sorted(SETTINGS), help="one part alone")
    parser.add_argument("--quick", action="store_true", help="small rows; nothing is written")
    parser.add_argument("--repeats", type=int, default=9)
    arguments = parser.parse_args()
    limits = Limits.measured()
    print(limits)
    if arguments.quick:
        for own in (False, True):
            print(against_tensorflow(SMALL._replace(own=own), limits, 1))
        return
    for name in [arguments.only] if arguments.only else SETTINGS:
        rows = []
        for setting in SETTINGS[name]:
            rows.append(against_tensorflow(setting, limits, arguments.repeats))
            print(
                {
                    key: rows[-1][key]
                    for key in (*Setting._fields, "op_ms", "tensorflow_ms", "least_ms")
                }
            )
        harness.write_csv(harness.RESULTS / f"sampled_head_{name}.csv", rows)


if __name__ == "__main__":
    main()
