# SPDX-License-Identifier: Apache-2.0
"""The job with a worker that pretends."""

from __future__ import annotations

import sys

import pytest

from tfx_largeout.compare.job import Job, run_job
from tfx_largeout.compare.output_folder import OutputFolder
from tfx_largeout.compare.settings import DataSettings, TrainingSettings

WORKER = """
import json, sys
head = json.load(sys.stdin)["head"]
def send(event, **fields):
    print(json.dumps({"event": event, "peak_bytes": 5, **fields}), flush=True)
send("ready", steps_per_epoch=10, parameters=3, implementation=sys.argv[1], data={"classes": 4})
for step in (0, 5):
    names = ["precision_at_1", "precision_at_3", "precision_at_5"]
    names += ["ps_precision_at_1", "exact_loss"]
    point = {"step": step, "epoch": step / 10, "seconds": step, "train_loss": 1.0}
    send("point", point={**point, **dict.fromkeys(names, step / 10)})
if head == "tf_nce":
    send("failed", error="ValueError: no", data_at_fault=False)
else:
    send("done", step=5, seconds=5.0)
"""


def run(tmp_path, *heads, implementation="custom ops loaded"):
    job = Job({head: {} for head in heads}, "pretended", DataSettings(), TrainingSettings())
    folder = OutputFolder(str(tmp_path / "run"))
    worker = [sys.executable, "-c", WORKER, implementation]
    return run_job(job, folder, worker), folder


@pytest.mark.parametrize(
    ("heads", "code"), [(["full_softmax"], 0), (["tf_nce", "full_softmax"], 1)]
)
def test_exit_code_and_table(tmp_path, capsys, heads, code):
    assert run(tmp_path, *heads)[0] == code
    printed = capsys.readouterr().out
    for head in heads:
        assert any(line.startswith(f"{head}  ") for line in printed.splitlines())


def test_a_head_that_ran_on_the_fallback_is_pointed_out_once(tmp_path, capsys):
    run(tmp_path, "full_softmax", "tf_nce", implementation="the shared library is missing")
    assert capsys.readouterr().out.count("the shared library is missing\n") == 1


def test_nothing_is_pointed_out_where_the_custom_ops_ran(tmp_path, capsys):
    run(tmp_path, "full_softmax", implementation="custom ops loaded (TensorFlow 2.21.0, avx2)")
    assert "custom ops" not in capsys.readouterr().out


def test_a_failed_head_keeps_its_curve(tmp_path, capsys):
    _, folder = run(tmp_path, "tf_nce")
    assert "tf_nce failed: ValueError: no" in capsys.readouterr().out
    assert len(folder.curves_csv.read_text().splitlines()) == 1 + 2
    assert folder.plot_png.exists()


def test_without_matplotlib_one_sentence_says_how_to_get_plots(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)  # importing it now fails
    code, folder = run(tmp_path, "full_softmax")
    assert code == 0
    assert "pip install 'tfx_largeout[plot]'" in capsys.readouterr().err
    assert not folder.plot_png.exists()
    assert folder.results_json.exists()
