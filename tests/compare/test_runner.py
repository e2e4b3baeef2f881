# SPDX-License-Identifier: Apache-2.0
"""The runner against workers that are scripts of a few lines."""

from __future__ import annotations

import os
import signal
import sys

import pytest

from tfx_largeout.compare.settings import DataSettings, TrainingSettings, WorkerSettings
from tfx_largeout.compare.worker import DataError, run_head

PROLOGUE = """
import json, os, signal, sys, time
settings = json.load(sys.stdin)
def send(**told):
    print(json.dumps({"peak_bytes": 5, **told}), flush=True)
send(stage="training", steps_per_epoch=10, parameters=3, implementation="none",
     data={"classes": 4})
send(steps=7, seconds=1.5, loss=2.5)
"""


def run(tmp_path, script, on_change=lambda result, loss: None):
    settings = WorkerSettings("tf_nce", {"a": 1}, DataSettings(), TrainingSettings(), "events")
    command = [sys.executable, "-c", PROLOGUE + script]
    return run_head(settings, tmp_path / "log", on_change, command)


def test_a_worker_that_ends_well(tmp_path):
    losses = []
    result = run(
        tmp_path,
        "assert settings['head'] == 'tf_nce' and settings['training']['batch_size'] == 512\n"
        "send(status='done', steps=20, seconds=4.0)",
        lambda result, loss: losses.append(loss),
    )
    assert (result.status, result.error) == ("done", None)
    assert (result.steps, result.epochs, result.seconds) == (20, 2.0, 4.0)
    assert (result.peak_bytes, result.data) == (5, {"classes": 4})
    assert losses == [None, 2.5, None]


def test_stages_and_notes(tmp_path):
    stages = []
    script = "send(note='odd'); send(stage='reading'); send(status='done', steps=1, seconds=1)"
    result = run(tmp_path, script, lambda result, loss: stages.append(result.stage))
    assert stages == ["training", "training", "training", "reading", "reading"]
    assert result.notes == ["odd"]


def test_a_worker_that_reports_an_error(tmp_path):
    result = run(tmp_path, "send(status='failed', error='ValueError: no'); exit(1)")
    assert (result.status, result.error, result.steps) == ("failed", "ValueError: no", 7)


def test_a_worker_that_is_killed(tmp_path):
    result = run(tmp_path, "os.kill(os.getpid(), signal.SIGKILL)")
    assert result.status == "failed"
    assert "killed by SIGKILL, perhaps for want of memory" in result.error
    assert result.steps == 7


def test_a_worker_that_crashes(tmp_path):
    result = run(tmp_path, "print('some reason', file=sys.stderr); os._exit(3)")
    assert "exit code 3" in result.error
    assert (tmp_path / "log").read_text() == "some reason\n"


def test_malformed_data_stop_everything(tmp_path):
    with pytest.raises(DataError, match=r"train\.txt:3: bad"):
        run(tmp_path, "send(data_error='train.txt:3: bad'); exit(1)")


@pytest.mark.thorough
def test_the_worker_is_of_the_package_that_runs_whatever_the_current_folder_holds(
    tmp_path, monkeypatch
):
    other = tmp_path / "tfx_largeout"
    other.mkdir()
    (other / "__init__.py").write_text("raise ImportError('the package of the current folder')")
    monkeypatch.chdir(tmp_path)
    data = DataSettings(None, "nowhere.txt", "nowhere.txt")
    settings = WorkerSettings("tf_nce", {}, data, TrainingSettings(), "events")
    with pytest.raises(DataError, match=r"nowhere\.txt"):
        run_head(settings, tmp_path / "log", lambda result, loss: None)


def test_ctrl_c_ends_the_worker_and_keeps_its_progress(tmp_path):
    def press_ctrl_c(result, loss):
        if result.steps == 8:
            os.kill(os.getpid(), signal.SIGINT)

    pid = tmp_path / "pid"
    script = f"open({str(pid)!r}, 'w').write(str(os.getpid()))\n"
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        result = run(tmp_path, script + "send(steps=8, seconds=2, loss=1)\n"
                     "time.sleep(60)", press_ctrl_c)  # fmt: skip
    finally:
        signal.signal(signal.SIGINT, previous)
    assert (result.status, result.error) == ("interrupted", None)
    assert result.steps == 8
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)
