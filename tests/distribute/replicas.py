# SPDX-License-Identifier: Apache-2.0
"""Checkpoints and files of workers in groups. As a program: python replicas.py FOLDER GROUPS.

With TF_CONFIG. Each worker writes its results. With `differ` for groups: another number on each.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

import tfx_largeout as tlo

sys.path.insert(0, str(Path(__file__).parents[1]))
from distribute import checkpoints

BEFORE = {"4-2": "2-2", "2-1": "4-2"}  # workers and groups: those whose checkpoint they go on from


def ended_alone(folder: Path):
    """The final rows of a run in one process, which may resume from a checkpoint."""
    copied = folder.with_name(f"{folder.name}-alone")
    if folder.exists():
        shutil.copytree(folder, copied)
    model = checkpoints.model_of("sampled")
    checkpoints.fit(model, copied)
    return checkpoints.rows_of(model.layers[-1])


def loaded(path: Path):
    return keras.saving.load_model(path)


def main(folder: Path, groups: int) -> None:
    workers = tlo.distribute.connect(timeout=180, step_timeout=120, data_replicas=groups)
    name = f"{workers.size}-{groups}"
    whole, model = checkpoints.model_of("sampled"), checkpoints.model_of("sampled")
    expected = checkpoints.fit(whole, folder / f"{name}-whole")
    checkpoints.fit(checkpoints.model_of("sampled"), folder / name, 9)
    if workers.rank == 0:
        shutil.copytree(folder / name, folder / f"{name}-copy")
    workers.gather(tf.constant([0]), "copied")
    tf.random.set_seed(99)
    assert checkpoints.fit(model, folder / f"{name}-copy") == expected
    checkpoints.assert_same(model, whole)
    tlo.save_model(model, folder / f"{name}.keras")
    again = keras.saving.load_model(folder / f"{name}.keras")
    np.testing.assert_array_equal(again.layers[-1].kernel.numpy(), model.layers[-1].kernel.numpy())
    if name in BEFORE:
        other = checkpoints.model_of("sampled")
        run = folder / f"{name}-from-{BEFORE[name]}"
        if workers.rank == 0:
            shutil.copytree(folder / BEFORE[name], run)
        workers.gather(tf.constant([0]), "copied")
        checkpoints.fit(other, run)
        np.savez(f"{run}-{workers.rank}.npz", **checkpoints.rows_of(other.layers[-1]))


def number_of(groups: str) -> int:
    if groups == "differ":
        return 1 + json.loads(os.environ["TF_CONFIG"])["task"]["index"]
    return int(groups)


if __name__ == "__main__":
    main(Path(sys.argv[1]), number_of(sys.argv[2]))
