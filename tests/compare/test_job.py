# SPDX-License-Identifier: Apache-2.0
"""The job with a worker that pretends."""

from __future__ import annotations

import json
import sys

import pytest

from tfx_largeout.compare import comparison
from tfx_largeout.compare import job as job_module
from tfx_largeout.compare.job import Job, run_job
from tfx_largeout.compare.output_folder import OutputFolder
from tfx_largeout.compare.settings import DataSettings, TrainingSettings

WORKER = """
import json, sys
head = json.load(sys.stdin)["head"]
def send(event, **fields):
    print(json.dumps({"event": event, "peak_bytes": 5, **fields}), flush=True)
send("ready", batch_size=6, steps_per_epoch=10, parameters=3, implementation="none",
     data={"classes": 4})
send("note", text="the shared library is missing")
for step in (0, 5):
    names = ["precision_at_1", "precision_at_3", "precision_at_5"]
    names += ["ps_precision_at_1", "exact_loss"]
    point = {"step": step, "epoch": step / 10, "seconds": step, "train_loss": float(sys.argv[1])}
    send("point", point={**point, **dict.fromkeys(names, step / 10)})
if head == "tf_nce":
    send("failed", error="ValueError: no", data_at_fault=False)
else:
    send("done", step=5, seconds=5.0)
"""


def run(tmp_path, *heads, loss="1", open_page=False, training=None, **fields):
    training = training or TrainingSettings()
    options = {head: {} for head in heads}
    job = Job(options, "a $ and a \\frac{", DataSettings(), training, **fields)
    folder = OutputFolder(str(tmp_path / "run"))
    folder.make()
    return run_job(job, folder, [sys.executable, "-c", WORKER, loss], open_page), folder


@pytest.mark.usefixtures("no_picture")
@pytest.mark.parametrize(
    ("heads", "code"), [(["full_softmax"], 0), (["tf_nce", "full_softmax"], 1)]
)
def test_exit_code_and_table(tmp_path, capsys, heads, code):
    assert run(tmp_path, *heads)[0] == code
    printed = capsys.readouterr().out
    for head in heads:
        assert any(line.startswith(f"{head}  ") for line in printed.splitlines())


@pytest.mark.usefixtures("no_picture")
def test_a_note_of_several_workers_is_printed_once(tmp_path, capsys):
    run(tmp_path, "full_softmax", "tf_nce")
    assert capsys.readouterr().out.count("\nthe shared library is missing\n") == 1


def test_a_failed_head_keeps_its_curve(tmp_path, capsys):
    _, folder = run(tmp_path, "tf_nce")
    assert "tf_nce failed: ValueError: no" in capsys.readouterr().out
    assert len(folder.curves_csv.read_text().splitlines()) == 1 + 2
    assert folder.plot_png.exists()


def test_without_matplotlib_one_sentence_says_how_to_get_plots(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)  # importing it now fails
    code, folder = run(tmp_path, "full_softmax")
    assert code == 0
    assert 'pip install ".[plot]"' in capsys.readouterr().err
    assert not folder.plot_png.exists()
    assert folder.results_json.exists()


def test_a_plot_that_fails_leaves_the_results(tmp_path, capsys, monkeypatch):
    def fail(*arguments):
        raise ValueError("no such font")

    monkeypatch.setattr(comparison, "plot_curves", fail)
    code, _ = run(tmp_path, "full_softmax")
    printed = capsys.readouterr().err
    assert code == 0
    assert "No plot: no such font\nResults: " in printed


@pytest.mark.usefixtures("no_picture")
def test_a_loss_that_is_not_finite_is_null_in_json(tmp_path):
    _, folder = run(tmp_path, "full_softmax", loss="nan")

    def refuse(constant):
        raise AssertionError(constant)

    (head,) = json.loads(folder.results_json.read_text(), parse_constant=refuse)["heads"]
    assert [point["train_loss"] for point in head["curve"]] == [None, None]


@pytest.mark.parametrize("with_plots", [True, False])
def test_a_page_shows_table_notes_and_plot_and_how_it_was_measured(
    tmp_path, monkeypatch, with_plots
):
    if not with_plots:
        monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    monkeypatch.setattr(sys, "argv", ["tfx-largeout", "compare", "--data", "a b"])
    _, folder = run(tmp_path, "full_softmax", "tf_nce")
    page = folder.page_html.read_text()
    assert page.count("<tr><td>") == 2
    assert "<h1>a $ and a \\frac{: 4 classes, batches of 6</h1>" in page
    assert "<li>the shared library is missing</li>" in page
    assert "<li>tf_nce failed: ValueError: no</li>" in page
    assert "<dd>tfx-largeout compare --data &#x27;a b&#x27;</dd>" in page
    assert "cores" in page and "tensorflow" in page and "evaluations 6" in page
    assert ("data:image/png;base64," in page) == with_plots


@pytest.mark.usefixtures("no_picture")
def test_the_page_is_opened_on_demand(tmp_path, capsys, monkeypatch):
    opened = []
    monkeypatch.setattr(job_module.webbrowser, "open", lambda url: opened.append(url) or False)
    _, folder = run(tmp_path, "full_softmax", open_page=True)
    assert opened == [folder.page_html.resolve().as_uri()]
    assert "No browser was found" in capsys.readouterr().err


@pytest.mark.usefixtures("no_picture")
def test_each_seed_is_trained_in_turn(tmp_path):
    _, folder = run(tmp_path, "full_softmax", "ranking", training=TrainingSettings(seed=5, seeds=2))
    results = json.loads(folder.results_json.read_text())
    runs = [(head["head"], head["seed"]) for head in results["heads"]]
    assert runs == [("full_softmax", 5), ("ranking", 5), ("full_softmax", 6), ("ranking", 6)]
    assert [(row["head"], row["seeds"]) for row in results["summary"]] == [
        ("full_softmax", 2),
        ("ranking", 2),
    ]
    assert folder.log("ranking-seed6").exists()


@pytest.mark.usefixtures("no_picture")
def test_peers_that_are_not_installed_are_named(tmp_path, capsys):
    run(tmp_path, "full_softmax", missing_peers=("omikuji", "napkinxc"))
    line = "Peers not installed: omikuji, napkinxc (`pip install omikuji napkinxc`, or in a clone "
    assert line in capsys.readouterr().out
