# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of several workers, and `tfx-largeout launch --restarts`.

One test, so that the workers are started only once for all comparisons.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import keras
import numpy as np
import pytest
from child import run_child
from distribute import checkpoints
from distribute.run_workers import check_ended_well, end_workers, start_workers

from tfx_largeout.callbacks.checkpoint_folder import CheckpointFolder

PROGRAM = Path(checkpoints.__file__)
KINDS = ("sampled", "numbers", "factored")
# By the name of the case: the error on each worker, and a warning.
TOLD = {
    "flipped_part": ("no error", r"is damaged \(.* goes on from epoch-00002-batch-00000004.npz"),
    "missing_part": ("no error", r"No such file.* goes on from epoch-00002-batch-00000004.npz"),
    "foreign_part": ("no error", r"is not the file that was written with it"),
    "flipped_shared": ("no error", r"goes on from epoch-00002-batch-00000004.npz"),
    "all_missing": (r"RuntimeError: one of the checkpoints in .* must be whole; got", None),
    "classes": (r"ValueError: .*\[44, 5\] in the model, .*\[43, 5\] there", None),
    "head": (r"ValueError: .*the checkpoint must be one of this model", None),
    "data": (r"ValueError: .*the data must be the data of the checkpoint", None),
    "parts_of_parts": (r"ValueError: the data \(whole batches, .*must be the same on all", None),
    "one_alone": (r"InvalidArgumentError: .*workers must all be at the same place", None),
    "folders": (r"ValueError: the list of checkpoints of the folder of Checkpoint must be", None),
    "full_disk": ("no error", r"could not be written to .*No space left"),
}

TRAINS = """
import os, signal, sys
from pathlib import Path
sys.path.insert(0, {tests!r})
import keras, numpy as np
import tfx_largeout as tlo
from distribute import checkpoints
folder, rank = Path(sys.argv[1]), tlo.distribute.connect(timeout=180).rank
mark = folder / "a worker was killed"

class Dies(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if rank and int(self.model.optimizer.iterations) == 9 and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)

model = checkpoints.model_of("dense")
checkpoints.fit(model, folder / "killed-run", called=[Dies()])
np.savez(folder / f"killed-{{rank}}.npz", **checkpoints.state(model))
"""


@pytest.mark.thorough
def test_runs_of_two_workers_go_on(tmp_path):
    for kind in KINDS:
        checkpoints.fit(checkpoints.model_of(kind), tmp_path / f"{kind}-of-one", 10)
    children = start_workers(tmp_path, PROGRAM, 2, str(tmp_path))
    try:
        wholes = {kind: checkpoints.model_of(kind) for kind in KINDS}
        for kind, whole in wholes.items():
            checkpoints.fit(whole, tmp_path / f"{kind}-whole")
    finally:
        ended = end_workers(children)
    check_ended_well(ended)
    for kind, whole in wholes.items():
        check_one_goes_on_after_two(tmp_path, kind, whole)
        check_two_go_on_after_one(tmp_path, kind, whole)
    check_points_of_a_save(tmp_path / "points")
    check_a_file_of_keras(tmp_path)
    check_tables_begin_anew(tmp_path)
    check_what_was_told(tmp_path)
    check_a_killed_worker(tmp_path)


def check_one_goes_on_after_two(folder, kind, whole):
    model = checkpoints.model_of(kind)
    checkpoints.fit(model, folder / f"{kind}-of-two")
    expected, found = checkpoints.state(whole), checkpoints.state(model)
    assert list(expected) == list(found)
    for name, array in expected.items():
        # Transitions of slots without rows are of no account.
        if not name.endswith(("seed", "total", "count", "transitions")):
            assert_close(found[name], array, name)
    assert_close_rows(checkpoints.rows_of(model.layers[-1]), whole.layers[-1], slice(None), kind)


def check_two_go_on_after_one(folder, kind, whole):
    for rank in range(2):
        found = np.load(folder / f"{kind}-{rank}.npz")
        assert_close_rows(found, whole.layers[-1], slice(rank, None, 2), kind)


def assert_close_rows(found, head, rows, what):
    for name, expected in checkpoints.rows_of(head).items():
        assert_close(found[name], expected[rows], what)


def assert_close(actual, expected, what):
    scale = 3e-6 * max(np.abs(expected).max(), 1e-3)
    np.testing.assert_allclose(actual, expected, rtol=3e-6, atol=scale, err_msg=str(what))


def check_a_file_of_keras(folder):
    """One process loads a model trained by two, and saves it like any model."""
    model = checkpoints.model_of("sampled")
    checkpoints.fit(model, folder / "sampled-of-both", after=1)
    model.save(folder / "model.keras")
    loaded = keras.saving.load_model(folder / "model.keras")
    head, optimizer = loaded.layers[-1], loaded.optimizer
    assert int(optimizer.iterations) == int(head.optimizer.iterations) == 18
    for rank in range(2):
        state = np.load(folder / f"sampled-state-{rank}.npz")
        kernels = [state[name] for name in state.files if name.endswith("SampledHead.kernel")]
        np.testing.assert_array_equal(head.kernel.numpy()[rank::2], kernels[0])


def check_tables_begin_anew(folder):
    """One process takes the rows of W, and builds the tables of its index from them."""
    model = checkpoints.model_of("indexed")
    checkpoints.fit(model, folder / "indexed-of-both", after=1)
    head = model.layers[-1]
    assert int(head.index.clock) == 0
    for rank in range(2):
        state = np.load(folder / f"indexed-state-{rank}.npz")
        kernels = [state[name] for name in state.files if name.endswith("SampledHead.kernel")]
        np.testing.assert_array_equal(head.kernel.numpy()[rank::2], kernels[0])
    model.fit(checkpoints.of_epoch(0), verbose=0)
    entries = np.sort(head.index.entries.numpy(), axis=1)
    assert (entries == np.arange(checkpoints.CLASSES)).all()


def check_points_of_a_save(folder):
    """At each point one whole checkpoint counts: the previous one, until the last file exists."""
    epochs = []
    for point in sorted(folder.iterdir()):
        copied = CheckpointFolder(point, keep=1)
        copied.clean()
        run = copied.newest()
        assert run is not None
        for name in run.names:
            run.array(name)
        epochs.append((point.name, run.facts["position"]))
    old, new = [1, 2], [2, 0]
    assert epochs == [
        *(("0-0", old), ("0-1", old), ("0-2", old), ("0-3", new)),
        *(("1-0", old), ("1-1", old)),
    ]


def check_what_was_told(folder):
    for rank in range(2):
        found = json.loads((folder / f"told-{rank}.json").read_text())
        assert set(found) == set(TOLD)
        for name, (error, warning) in TOLD.items():
            assert re.search(error, found[name][0], re.DOTALL), (name, found[name])
            if warning:
                assert re.search(warning, found[name][1], re.DOTALL), (name, found[name])
        for name in ("flipped_part", "missing_part", "foreign_part", "flipped_shared"):
            assert any(file.endswith(".npz.damaged") for file in found[name][-1]), found[name]
        assert found["all_missing"][-1] and not any(
            file.endswith(".damaged") for file in found["all_missing"][-1]
        )
        assert not any(file.endswith(".part") for file in found["full_disk"][-1])


def check_a_killed_worker(folder):
    """Bit for bit equal to the run without a killed worker."""
    (folder / "trains.py").write_text(TRAINS.format(tests=str(PROGRAM.parents[1])))
    main = "import sys; from tfx_largeout.compare.cli import main; sys.exit(main(sys.argv[1:]))"
    options = ["--workers", "2", "--restarts", "1", str(folder / "trains.py"), str(folder)]
    done = run_child(folder, "-c", main, "launch", *options)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "starting all workers again, 1 of 1" in done.stderr
    for rank in range(2):
        expected = np.load(folder / f"dense-state-{rank}.npz")
        found = np.load(folder / f"killed-{rank}.npz")
        assert expected.files == found.files
        for name in expected.files:
            np.testing.assert_array_equal(found[name], expected[name], err_msg=name)
