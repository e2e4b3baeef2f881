# SPDX-License-Identifier: Apache-2.0
"""The n-gram language model of examples/, with each loss for the same time of training.

First the time of a step is measured, with the losses in turns; it gives the number of steps in the
given seconds. Then each loss trains for its steps, and is scored at regular intervals on the
held-out end of the text and on rated pairs of words.

    python benchmarks/language_model.py speed novels.txt.xz    # nothing else on the machine
    python benchmarks/language_model.py train novels.txt.xz --similarity SIMLEX-999.txt
    python benchmarks/language_model.py plot

`speed` and `train` write a CSV each; `train --losses` replaces the rows of these losses. `train`
also writes TensorBoard logs, `plot` draws docs/figures/language_model.png. For separate CSVs of the
exact and the full softmax: `--suffix exact --losses softmax exact_softmax` with both.
"""

from __future__ import annotations

import argparse
import csv
import functools
import math
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import harness
import numpy as np

ROOT = Path(__file__).parents[1]
TRAINING = harness.RESULTS / "language_model.csv"
FIGURE = ROOT / "docs" / "figures" / "language_model.png"

# The learning rates below the head and of the head, the best of a few that were tried for seconds.
RATES = {
    "softmax": (1.0, 1.0),
    "exact_softmax": (1.0, 1.0),
    "z_loss": (10.0, 10.0),
    "spherical_softmax": (3.0, 30.0),
}
WITH_PROBABILITIES = ("softmax", "exact_softmax", "spherical_softmax")
TIMED_STEPS = {"softmax": 5, "exact_softmax": 20}  # of a call; 100 of the others


def example() -> Any:
    """Returns the module of the example."""
    sys.path.insert(0, str(ROOT / "examples"))
    import ngram_language_model

    return ngram_language_model


def rates(loss: str) -> list[str]:
    """Returns the options of the example that are the loss's own."""
    below, head = RATES[loss]
    options = ["--loss", loss, "--learning-rate", str(below), "--head-learning-rate", str(head)]
    return [*options, "--held-out", "10000"]


def speed(text: Path, losses: list[str], repeats: int) -> list[dict[str, Any]]:
    """Returns a row a loss: the time of a step of `fit`."""
    module = example()
    vocabulary, numbers = module.number_words(module.read_words(text))
    sides: dict[str, Callable[[], Any]] = {}
    for loss in losses:
        arguments = module.parse([str(text), *rates(loss)])
        model = module.build_model(
            len(vocabulary), arguments, np.bincount(numbers, minlength=len(vocabulary))
        )
        data = module.ngrams(numbers, arguments.order, arguments.batch_size, shuffle=True)
        steps = TIMED_STEPS.get(loss, 100)
        sides[loss] = functools.partial(
            model.fit, data.repeat(), steps_per_epoch=steps, shuffle=False, verbose=0
        )
    seconds = harness.alternate(sides, repeats)
    return [
        {
            "loss": loss,
            "words": len(numbers),
            "classes": len(vocabulary),
            "ms_of_step": round(1e3 * seconds[loss] / TIMED_STEPS.get(loss, 100), 2),
            **harness.machine(),
        }
        for loss in losses
    ]


def train(loss: str, arguments: Any) -> list[dict[str, Any]]:
    """Returns a row a point."""
    ms = {row["loss"]: float(row["ms_of_step"]) for row in read(speed_csv(arguments))}[loss]
    steps = round(1e3 * arguments.seconds / ms / arguments.points)
    options = ["--epochs", str(arguments.points), "--steps-per-epoch", str(steps)]
    options += ["--logs", str(arguments.logs), "--similarity", str(arguments.similarity)]
    history = example().main([str(arguments.text), *rates(loss), *options])
    below, head = RATES[loss]
    rows = []
    for point in range(arguments.points):
        values = {name: curve[point] for name, curve in history.items()}
        has_perplexity = loss in WITH_PROBABILITIES
        rows.append(
            {
                "loss": loss,
                "learning_rate": below,
                "head_learning_rate": head if loss != "softmax" else below,
                "seconds": round(steps * (point + 1) * ms / 1e3, 1),
                "steps": steps * (point + 1),
                "training_loss": f"{values['loss']:.4f}",
                "held_out_loss": f"{values['val_loss']:.4f}",
                "perplexity": f"{math.exp(values['val_loss']):.1f}" if has_perplexity else "",
                "precision_at_1": f"{values['val_precision_at_1']:.4f}",
                "precision_at_5": f"{values['val_precision_at_5']:.4f}",
                "mean_reciprocal_rank": f"{values['val_mean_reciprocal_rank']:.4f}",
                "similarity": f"{values['similarity']:.4f}",
                **harness.machine(),
            }
        )
    return rows


def speed_csv(arguments: Any) -> Path:
    """Returns where `speed` writes, and `train` reads."""
    return harness.RESULTS / f"language_model_speed{arguments.suffix}.csv"


def read(path: Path) -> list[dict[str, str]]:
    """Returns the rows of a CSV."""
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def plot() -> None:
    """Draws precision and similarity against seconds of training."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4), layout="constrained")
    titles = {"precision_at_1": "P@1, held out", "similarity": "Spearman, SimLex-999"}
    for axes, (column, title) in zip(figure.subplots(1, 2), titles.items(), strict=True):
        for loss in RATES:
            points = [row for row in read(TRAINING) if row["loss"] == loss]
            if not points:
                continue
            seconds = [float(row["seconds"]) for row in points]
            axes.plot(seconds, [float(row[column]) for row in points], marker=".", label=loss)
        axes.set(title=title, xlabel="seconds of training")
        axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(FIGURE, dpi=80)


def main() -> None:
    """Parses the command line and runs a part."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", choices=["speed", "train", "plot"])
    parser.add_argument("text", type=Path, nargs="?")
    parser.add_argument("--similarity", type=Path)
    parser.add_argument("--seconds", type=float, default=150, help="of training, each")
    parser.add_argument("--points", type=int, default=5, help="times that each is scored")
    parser.add_argument("--logs", type=Path, default=Path("runs/ngram"))
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--losses", nargs="+", choices=list(RATES), default=list(RATES))
    parser.add_argument("--suffix", type="_{}".format, default="", help="of the names of the CSVs")
    arguments = parser.parse_args()
    training = TRAINING.with_stem(TRAINING.stem + arguments.suffix)
    if arguments.part == "plot":
        plot()
    elif arguments.part == "speed":
        rows = speed(arguments.text, arguments.losses, arguments.repeats)
        harness.write_csv(speed_csv(arguments), rows)
    else:
        old: list[dict[str, Any]] = list(read(training)) if training.exists() else []
        rows = [row for row in old if row["loss"] not in arguments.losses]
        for loss in arguments.losses:
            rows += train(loss, arguments)
        rows.sort(key=lambda row: list(RATES).index(row["loss"]))
        harness.write_csv(training, rows)


if __name__ == "__main__":
    main()
