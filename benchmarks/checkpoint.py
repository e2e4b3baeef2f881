# SPDX-License-Identifier: Apache-2.0
"""The cost of a checkpoint: seconds and bytes of a save and of a restart, and their peak memory.

A `SampledHead` with Adam, D = 128, compared with Keras's file and with writing as many bytes.

    python benchmarks/checkpoint.py --classes 1000000    # writes results/checkpoint.csv
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import harness

WIDTH = 128


def build(classes: int) -> Any:
    import keras

    import tfx_largeout as tlo

    keras.utils.set_random_seed(1)
    head = tlo.heads.SampledHead(
        classes, tlo.samplers.LogUniform(1000), tlo.optimizers.RowAdam(0.01), seed=1
    )
    model = keras.Sequential([keras.Input((16,)), keras.layers.Dense(WIDTH, "relu"), head])
    model.compile("adam", tlo.losses.ComplementarySum())
    return model


def data(epoch: int) -> Any:
    import numpy as np
    import tensorflow as tf

    rng = np.random.default_rng(epoch)
    x = rng.normal(size=(256, 16)).astype("float32")
    return tf.data.Dataset.from_tensor_slices((x, rng.integers(0, 1000, 256))).batch(64)


def timed(call: Callable[[], Any]) -> tuple[float, float]:
    """Returns the seconds of a call and the MiB that it adds at its peak."""
    seconds = 0.0

    def run() -> None:
        nonlocal seconds
        start = time.perf_counter()
        call()
        seconds = time.perf_counter() - start

    peak = harness.peak_mib(run)
    return seconds, peak


def write_plainly(path: Path, size: int) -> None:
    block = bytes(2**24)
    with path.open("wb") as file:
        for start in range(0, size, len(block)):
            file.write(block[: size - start])
        file.flush()
        os.fsync(file.fileno())


def row(classes: int) -> dict[str, Any]:
    from tfx_largeout.callbacks import Checkpoint
    from tfx_largeout.callbacks.checkpoint_file import CheckpointFile
    from tfx_largeout.callbacks.checkpoint_folder import Position

    model, folder = build(classes), Path(tempfile.mkdtemp())
    try:
        checkpoint = Checkpoint(folder / "run")
        model.fit(checkpoint.data(data), callbacks=[checkpoint], shuffle=False, verbose=0)
        (path,) = (folder / "run").iterdir()
        size = path.stat().st_size
        save = timed(lambda: checkpoint._save(Position(2, 0), {}))
        check = timed(lambda: CheckpointFile(path))
        source = CheckpointFile(path)
        restore = timed(lambda: checkpoint._restore(source))
        keras_save = timed(lambda: model.save_weights(folder / "keras.weights.h5"))
        plain = timed(lambda: write_plainly(folder / "plain", size))
    finally:
        shutil.rmtree(folder)
    return {
        "classes": classes,
        "width": WIDTH,
        "file_mib": round(size / 2**20, 1),
        "save_s": round(save[0], 2),
        "save_peak_mib": round(save[1], 1),
        "check_s": round(check[0], 2),
        "restore_s": round(restore[0], 2),
        "restore_peak_mib": round(restore[1], 1),
        "keras_save_weights_s": round(keras_save[0], 2),
        "write_and_fsync_s": round(plain[0], 2),
        **harness.machine(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--classes", type=int, nargs="+", default=[100_000, 1_000_000])
    rows = [row(classes) for classes in parser.parse_args().classes]
    for values in rows:
        print(values)
    harness.write_csv(harness.RESULTS / "checkpoint.csv", rows)


if __name__ == "__main__":
    main()
