# SPDX-License-Identifier: Apache-2.0
"""Heads tied to an input embedding, against the Keras model that multiplies by the same table.

The claim: a training step of `fit` on sequences, of the exact softmax or of candidates, takes less
time than a step of a `ReversibleEmbedding` with Keras's full softmax and Adam.

    python benchmarks/tied_heads.py            # writes a CSV row
    python benchmarks/tied_heads.py --quick    # a small one, nothing is written
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import harness
import keras
import numpy as np

import tfx_largeout as tlo

WIDTH, LENGTH, BATCH = 64, 16, 32
STEPS = 5


def trunk(x: Any) -> Any:
    """Returns hidden activations of each place."""
    return keras.layers.GRU(WIDTH, return_sequences=True)(x)


def tied(num_words: int, make_head: Callable[[Any], Any], loss: Any, optimizer: Any) -> Any:
    """Returns a compiled model with a head that is tied to its embedding."""
    embedding = tlo.layers.RowEmbedding(num_words, WIDTH)
    inputs = keras.Input([LENGTH], dtype="int32")
    model = keras.Model(inputs, make_head(embedding)(trunk(embedding(inputs))))
    model.compile(optimizer, loss)
    return model


def by_keras(num_words: int) -> Any:
    """Returns a compiled model with a `ReversibleEmbedding` under the full softmax."""
    embedding = keras.layers.ReversibleEmbedding(num_words, WIDTH)
    inputs = keras.Input([LENGTH], dtype="int32")
    model = keras.Model(inputs, embedding(trunk(embedding(inputs)), reverse=True))
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def models(num_words: int) -> dict[str, Any]:
    """Returns the models to compare."""
    heads, samplers, optimizers = tlo.heads, tlo.samplers, tlo.optimizers
    exact, sampled = tlo.losses.SoftmaxCrossentropy, tlo.losses.SampledSoftmax
    makers: dict[str, tuple[Callable[[Any], Any], Any, Any]] = {
        "shared": (
            lambda table: heads.TiedSampledHead(table, samplers.LogUniform(1000)),
            sampled(),
            optimizers.RowAdam(),
        ),
        "own": (
            lambda table: heads.TiedSampledHead(table, samplers.LogUniform(100, per_example=True)),
            sampled(),
            optimizers.RowAdam(),
        ),
        "midx": (
            lambda table: heads.TiedSampledHead(table, samplers.MIDX(100)),
            sampled(),
            optimizers.RowAdam(),
        ),
        "selected": (heads.TiedExactSoftmaxHead, exact(), optimizers.RowAdam()),
        "all": (
            lambda table: heads.TiedExactSoftmaxHead(table, backward="all"),
            exact(),
            optimizers.FusedAdam(),
        ),
    }
    own = {name: tied(num_words, *arguments) for name, arguments in makers.items()}
    return {"keras": by_keras(num_words), **own}


def main() -> None:
    """Parses the command line, measures, and writes the row."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="2,000 words, no CSV")
    arguments = parser.parse_args()
    num_words = 2_000 if arguments.quick else 50_000
    words = np.minimum(np.random.default_rng(0).zipf(1.3, [STEPS * BATCH, LENGTH + 1]), num_words)
    x, y = words[:, :-1] - 1, words[:, 1:] - 1

    def steps(model: Any) -> Callable[[], Any]:
        return lambda: model.fit(x, y, BATCH, verbose=0)

    methods = {name: steps(model) for name, model in models(num_words).items()}
    seconds = harness.alternate(methods, repeats=1 if arguments.quick else 7)
    row = {
        "words": num_words,
        "width": WIDTH,
        "places": BATCH * LENGTH,
        **{f"{name}_ms": round(1e3 * value / STEPS, 1) for name, value in seconds.items()},
        **{
            f"{name}_gain": round(seconds["keras"] / value, 2)
            for name, value in seconds.items()
            if name != "keras"
        },
        **harness.machine(),
    }
    print(row)
    if not arguments.quick:
        harness.write_csv(harness.RESULTS / "tied_heads.csv", [row])


if __name__ == "__main__":
    main()
