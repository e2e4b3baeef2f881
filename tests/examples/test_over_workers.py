# SPDX-License-Identifier: Apache-2.0
"""The example of several workers, and its results in one process."""

from __future__ import annotations

from pathlib import Path

import keras
import pytest
from child import run_child

import tfx_largeout  # noqa: F401  (Keras finds its classes)

EXAMPLE = str(Path(__file__).parents[2] / "examples" / "over_workers.py")
LAUNCH = "import sys; from tfx_largeout.compare.cli import main; sys.exit(main(sys.argv[1:]))"
OPTIONS = ["--epochs", "1", "--steps", "3", "--folder"]


@pytest.mark.thorough
def test_two_workers_write_a_model_of_one_process(tmp_path):
    workers = ["-c", LAUNCH, "launch", "--workers", "2", EXAMPLE]
    done = run_child(tmp_path, *workers, *OPTIONS, str(tmp_path))
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert "3/3" in done.stdout
    model = keras.saving.load_model(tmp_path / "over_workers.keras")
    assert model.layers[-1].kernel.shape == (139_536, 128)
    # The run is over: one process takes its checkpoint, and trains nothing.
    done = run_child(tmp_path, EXAMPLE, *OPTIONS, str(tmp_path))
    assert done.returncode == 0, done.stderr[-2000:]
    assert "nothing is left to train" in done.stdout
    assert int(keras.saving.load_model(tmp_path / "over_workers.keras").optimizer.iterations) == 3
