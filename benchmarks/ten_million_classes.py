# SPDX-License-Identifier: Apache-2.0
"""Ten million classes of width 256 in the memory of one machine: trained, evaluated, saved, found.

    python benchmarks/ten_million_classes.py                         # writes CSV rows
    python benchmarks/ten_million_classes.py --classes 1000000 --output /tmp/one_million.csv

Heads: `sampled` (2,000 shared candidates) and `exact` (all classes, entries selected), both with
bfloat16 weights and a row-wise `RowAdagrad`; and `factored` in float32. A row per phase: seconds,
and the peak memory of the process, without Python, TensorFlow and Keras. Phases: build; fit,
seconds per step; evaluate; top_k, the best 10 of a batch; save, a `.keras` file; export, a
SavedModel with `rows="bfloat16"`. In separate processes: load of the file; load_export, and serve,
a batch of requests to it.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import harness
import keras
import numpy as np
import tensorflow as tf

import tfx_largeout as tlo

OUTPUT = harness.RESULTS / "ten_million_classes.csv"
WIDTH, BATCH, STEPS = 256, 128, 3
HEADS = ("sampled", "exact", "factored")


def model_of(kind: str, classes: int) -> keras.Model:
    """Returns a compiled model, whose head is built."""
    adagrad = tlo.optimizers.RowAdagrad(0.1, row_wise=True, stochastic_rounding=True)
    if kind == "sampled":
        sampler = tlo.samplers.LogUniform(2000)
        head = tlo.heads.SampledHead(classes, sampler, adagrad, seed=1, dtype="bfloat16")
        loss: Any = tlo.losses.ComplementarySum()
    elif kind == "exact":
        head = tlo.heads.ExactSoftmaxHead(classes, adagrad, seed=1, dtype="bfloat16")
        loss = tlo.losses.SoftmaxCrossentropy()
    else:
        head = tlo.heads.FactoredHead(classes, 0.1)
        loss = tlo.losses.TaylorSoftmax()
    model = keras.Sequential([keras.Input([WIDTH]), keras.layers.Dense(WIDTH), head])
    model.compile("sgd", loss, metrics=[tlo.metrics.PrecisionAtK(1)])
    return model


def data_of(classes: int) -> tf.data.Dataset:
    """Returns a batch."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((BATCH, WIDTH)).astype("float32")
    return tf.data.Dataset.from_tensors((x, rng.integers(classes, size=BATCH)))


def measured(before: float, phase: str, action: Callable[[], Any], times: int = 1) -> dict:
    """Returns a row of a phase, with the peak of the process above what there was `before`."""
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")
    start = time.perf_counter()
    action()
    seconds = (time.perf_counter() - start) / times
    row = {
        "phase": phase,
        "seconds": f"{seconds:.2f}",
        "peak_mib": round(harness.peak_of_process_mib() - before),
        "kept_mib": round(harness.resident_mib() - before),
    }
    print(row, flush=True)
    return row


def warm(kind: str) -> float:
    """Does all of it on a small scale; returns the MiB that the process has then."""
    small = model_of(kind, 10_000)
    small.fit(data_of(10_000), verbose=0)
    small.evaluate(data_of(10_000), verbose=0)
    gc.collect()
    return harness.resident_mib()


def train(kind: str, classes: int, folder: Path) -> list[dict]:
    """Returns the rows of the process that trains."""
    before, data = warm(kind), data_of(classes)
    made: list[keras.Model] = []
    rows = [measured(before, "build", lambda: made.append(model_of(kind, classes)))]
    (model,) = made
    model.fit(data, verbose=0)  # traces
    steps = data.repeat(STEPS)
    rows.append(measured(before, "fit", lambda: model.fit(steps, verbose=0), STEPS))
    rows.append(measured(before, "evaluate", lambda: model.evaluate(data, verbose=0)))
    best = tlo.top_k_model(model, 10)
    x, _ = next(iter(data))
    rows.append(measured(before, "top_k", lambda: best.predict_on_batch(x)))
    file = folder / "model.keras"
    rows.append(measured(before, "save", lambda: tlo.save_model(model, file)))
    rows[-1]["disk_mib"] = round(file.stat().st_size / 2**20)
    export = folder / "export"
    rows.append(
        measured(before, "export", lambda: tlo.export(model, export, k=10, rows="bfloat16"))
    )
    sizes = sum(each.stat().st_size for each in export.rglob("*") if each.is_file())
    rows[-1]["disk_mib"] = round(sizes / 2**20)
    np.save(folder / "ids.npy", best.predict_on_batch(x)[1])
    return rows


def read(kind: str, classes: int, folder: Path) -> list[dict]:
    """Returns the rows of a process that reads the file, and finds the same classes."""
    before, data = warm(kind), data_of(classes)
    x, _ = next(iter(data))
    made: list[Any] = []
    rows = [
        measured(
            before, "load", lambda: made.append(keras.saving.load_model(folder / "model.keras"))
        )
    ]
    ids = tlo.top_k_model(made[0], 10).predict_on_batch(x)[1]
    assert (ids == np.load(folder / "ids.npy")).mean() > 0.99
    return rows


def serve(kind: str, classes: int, folder: Path) -> list[dict]:
    """Returns the rows of a process that serves the export."""
    before = harness.resident_mib()
    x, _ = next(iter(data_of(classes)))
    made: list[Any] = []
    rows = [
        measured(before, "load_export", lambda: made.append(tf.saved_model.load(folder / "export")))
    ]
    answer = (
        made[0].signatures["serving_default"] if hasattr(made[0], "signatures") else made[0].serve
    )
    found: dict[str, Any] = {}
    rows.append(measured(before, "serve", lambda: found.update(answer(inputs=x))))
    agreement = (np.asarray(found["ids"])[:, 0] == np.load(folder / "ids.npy")[:, 0]).mean()
    assert agreement > 0.9, agreement
    return rows


PROCESSES = {"train": train, "read": read, "serve": serve}


def main() -> None:
    """Measures each head in separate processes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--classes", type=int, default=10_000_000)
    parser.add_argument("--heads", nargs="+", choices=HEADS, default=HEADS)
    parser.add_argument("--output", type=Path, default=OUTPUT)
    parser.add_argument("--folder", type=Path, help="for the files, which are removed")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    classes = arguments.classes
    if arguments.child:
        process, kind = arguments.child
        print(json.dumps(PROCESSES[process](kind, classes, arguments.folder)))
        return
    for kind in arguments.heads:
        folder = Path(tempfile.mkdtemp(dir=arguments.folder))
        try:
            for process in PROCESSES:
                given = ["--classes", str(classes), "--folder", str(folder)]
                rows = json.loads(harness.in_child(*given, "--child", process, kind))
                for row in rows:
                    common = {"head": kind, "classes": classes, "width": WIDTH, "batch": BATCH}
                    row = {**common, **row, "disk_mib": row.get("disk_mib", "")}
                    harness.append_row(arguments.output, {**row, **harness.machine()})
        finally:
            shutil.rmtree(folder)


if __name__ == "__main__":
    main()
