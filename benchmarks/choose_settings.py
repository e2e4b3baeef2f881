# SPDX-License-Identifier: Apache-2.0
"""Settings that `choose_settings` finds in a minute, compared with others: shipped WordNet data.

The model of the comparison (WordNet's hypernyms, 139,536 classes, batches of 512, D = 256, dropout,
`SampledHead` with `ComplementarySum`) starts with the default rates of Keras and of this package,
1e-3, and 1,000 log-uniform candidates. `choose_settings` gets 60 seconds, on training examples.
Then three models train for the same time, with linearly falling rates as in the comparison, and are
evaluated on the test examples: with the default settings, the chosen ones, and the settings of the
comparison, which benchmarks/first_table.py found by many full trainings.

    python benchmarks/choose_settings.py            # three minutes on a quiet machine
    python benchmarks/choose_settings.py --quick    # few seconds each, nothing is written
"""

from __future__ import annotations

import argparse
import os
import time
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import harness
import keras

import tfx_largeout as tlo
from tfx_largeout import datasets
from tfx_largeout.compare.exact_evaluation import ExactEvaluation
from tfx_largeout.compare.settings import TrainingSettings
from tfx_largeout.compare.timed_fit import Supervisor

BATCH, WIDTH, SECONDS, SEARCH = 512, 256, 25.0, 60.0
DEFAULT = {"learning_rate": 1e-3, "head_learning_rate": 1e-3, "num_sampled": 1000}
TUNED = {"learning_rate": 4e-3, "head_learning_rate": 0.03, "num_sampled": 1500}


def model_of(train: Any, settings: dict[str, Any]) -> keras.Model:
    """Returns the compiled model with some settings."""
    keras.utils.set_random_seed(0)
    sampler = settings.get("sampler", tlo.samplers.LogUniform(1))
    head = tlo.heads.SampledHead(
        train.num_labels,
        sampler.resized(settings["num_sampled"], train.num_labels),
        tlo.optimizers.RowAdam(settings["head_learning_rate"]),
        bias_initializer=tlo.initializers.LogFrequency(train.label_counts()),
        seed=0,
    )
    inputs = keras.Input([train.num_features], sparse=True)
    hidden = tlo.layers.SparseDense(WIDTH, activation="relu")(inputs)
    model = keras.Model(inputs, head(keras.layers.Dropout(0.5, seed=0)(hidden)))
    optimizer = tlo.optimizers.RowRMSprop(settings["learning_rate"])
    model.compile(optimizer, loss=tlo.losses.ComplementarySum())
    return model


def trained(model: keras.Model, train: Any, test: Any, seconds: float) -> dict[str, Any]:
    """Trains for some seconds; returns the steps and the measurements."""
    keras.utils.set_random_seed(0)
    batches = train.dataset(BATCH, shuffle=True, seed=0, drop_remainder=True)
    evaluation, points = ExactEvaluation(model), []

    def evaluate() -> dict[str, float]:
        return evaluation.measure({"x": test.dataset(BATCH)})

    def send(**told: Any) -> None:
        points.extend([told["point"]] if "point" in told else [])

    supervisor = Supervisor(
        TrainingSettings(seconds, None, 1),
        int(batches.cardinality()),
        evaluate,
        send,
        falling=[model.optimizer],
    )
    clock = supervisor.fit(model, {"x": batches, "shuffle": False})
    last = points[-1]
    return {
        "steps": clock.steps,
        "exact_loss": f"{last['exact_loss']:.3f}",
        "precision_at_1": f"{last['precision_at_1']:.4f}",
        "precision_at_5": f"{last['precision_at_5']:.4f}",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="short; nothing is written")
    quick = parser.parse_args().quick
    search, seconds = (20.0, 3.0) if quick else (SEARCH, SECONDS)
    train, test = datasets.tf_idf(*datasets.load_wordnet("hyper"), log=True)
    batches = train.dataset(BATCH, shuffle=True, seed=0, drop_remainder=True)
    model, start = model_of(train, DEFAULT), time.perf_counter()
    chosen = tlo.choose_settings(model, batches, seconds=search)
    taken = time.perf_counter() - start
    print(chosen, f"{taken:.1f} s", sep="\n")
    del model
    rows = []
    for name, settings in (("default", DEFAULT), ("chosen", chosen.settings), ("tuned", TUNED)):
        sampler = settings.get("sampler", tlo.samplers.LogUniform(1))
        rates = {key: f"{settings[key]:.6g}" for key in ("learning_rate", "head_learning_rate")}
        rows.append(
            {
                "settings": name,
                **rates,
                "num_sampled": settings["num_sampled"],
                "sampler": type(sampler).__name__,
                "search_seconds": f"{taken:.1f}" if name == "chosen" else "",
                "trials": len(chosen.rows) if name == "chosen" else "",
                "seconds": seconds,
                **trained(model_of(train, settings), train, test, seconds),
                **harness.machine(),
            }
        )
        print(rows[-1])
    if not quick:
        harness.write_csv(harness.RESULTS / "choose_settings.csv", rows)
        chosen.to_csv(harness.RESULTS / "choose_settings_trials.csv")


if __name__ == "__main__":
    main()
