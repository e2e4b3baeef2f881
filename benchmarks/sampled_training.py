# SPDX-License-Identifier: Apache-2.0
"""A training step of SampledHead against tf.nn.sampled_softmax_loss, in Keras's `fit`.

The claims, at C = 1,000,000, D = 64, B = 128 and 1,000 shared candidates: with Adam a step is at
least 50 times as fast as TensorFlow's with Keras's Adam, and no slower than TensorFlow's with plain
SGD; at C = 10,000,000 it takes at most 1.5 times as long as at C = 100,000.

    python benchmarks/sampled_training.py            # all rows; 11 GB of memory, some minutes
    python benchmarks/sampled_training.py --quick    # small, nothing is written

The model is the head alone: hidden activations come in ready, candidates are log-uniform and
unique on all sides. Sides take turns in one process. Run it with nothing else on the machine.
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
import tensorflow as tf

import tfx_largeout as tlo
from tfx_largeout import losses, optimizers, samplers


class Setting(NamedTuple):
    """C, D, B and S."""

    classes: int
    width: int
    batch: int
    candidates: int


CLAIM = Setting(1_000_000, 64, 128, 1000)
SMALL = Setting(20_000, 16, 32, 100)
CLASSES = (100_000, 1_000_000, 10_000_000)
KERAS_ADAM_CLASSES = 1_000_000  # with more, a step takes seconds


def tf_head(setting: Setting) -> keras.Layer:
    return tlo.heads.TFSampledSoftmaxHead(setting.classes, setting.candidates)


def own_head(setting: Setting) -> keras.Layer:
    sampler = samplers.LogUniform(setting.candidates)
    return tlo.heads.SampledHead(setting.classes, sampler, optimizers.RowAdam())


SIDES: dict[str, tuple[Callable[[Setting], keras.Layer], Callable[[], Any], Callable[[], Any]]] = {
    "row_adam": (own_head, losses.SampledSoftmax, keras.optimizers.SGD),
    "tf_sgd": (tf_head, losses.TFCandidateSamplingLoss, keras.optimizers.SGD),
    "tf_row_adam": (tf_head, losses.TFCandidateSamplingLoss, optimizers.RowAdam),
    "tf_keras_adam": (tf_head, losses.TFCandidateSamplingLoss, keras.optimizers.Adam),
}


def model_of(side: str, setting: Setting) -> keras.Model:
    """Returns the compiled model."""
    make_head, make_loss, make_optimizer = SIDES[side]
    model = keras.Sequential([keras.Input((setting.width,)), make_head(setting)])
    model.compile(make_optimizer(), loss=make_loss())
    return model


def data_of(setting: Setting) -> tf.data.Dataset:
    """Returns endless batches; labels are uniform, so that rows come from main memory."""
    generator = tf.random.Generator.from_seed(1)
    hidden = generator.normal([64 * setting.batch, setting.width])
    labels = generator.uniform([64 * setting.batch], 0, setting.classes, tf.int64)
    data = tf.data.Dataset.from_tensor_slices((hidden, labels))
    return data.batch(setting.batch).cache().repeat().prefetch(8)


def measure(setting: Setting, sides: list[str], repeats: int) -> list[dict[str, Any]]:
    """Returns a row a side; all of them take turns."""
    data = data_of(setting)
    steps = {side: 3 if side == "tf_keras_adam" else 200 for side in sides}
    runs: dict[str, Callable[[], Any]] = {
        side: functools.partial(
            model_of(side, setting).fit, data, steps_per_epoch=steps[side], verbose=0, shuffle=False
        )
        for side in sides
    }
    seconds = harness.alternate(runs, repeats)
    own = seconds["row_adam"] / steps["row_adam"]
    return [
        {
            "side": side,
            **setting._asdict(),
            "ms_of_step": round(1e3 * seconds[side] / steps[side], 3),
            "times_row_adam": round(seconds[side] / steps[side] / own, 2),
            **harness.machine(),
        }
        for side in sides
    ]


def main() -> None:
    """Parses the command line, measures, and writes the rows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small, no CSV")
    parser.add_argument("--repeats", type=int, default=7)
    arguments = parser.parse_args()
    if arguments.quick:
        settings, repeats = [SMALL], 2
    else:
        settings, repeats = [CLAIM._replace(classes=c) for c in CLASSES], arguments.repeats
    rows: list[dict[str, Any]] = []
    for setting in settings:
        sides = [s for s in SIDES if s != "tf_keras_adam" or setting.classes <= KERAS_ADAM_CLASSES]
        if setting.classes > KERAS_ADAM_CLASSES:
            sides.remove("tf_row_adam")  # for want of memory
        for row in measure(setting, sides, repeats):
            rows.append(row)
            print({key: row[key] for key in list(row)[: -len(harness.machine())]}, flush=True)
    if not arguments.quick:
        harness.write_csv(harness.RESULTS / "sampled_training.csv", rows)


if __name__ == "__main__":
    main()
