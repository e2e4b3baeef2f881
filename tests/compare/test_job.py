# SPDX-License-Identifier: Apache-2.0
"""The job with a worker that pretends."""

from __future__ import annotations

import json
import re
import sys

import pytest

from tfx_largeout.compare import comparison
from tfx_largeout.compare import job as job_module
from tfx_largeout.compare.cli import main
from tfx_largeout.compare.comparison import OutputFolder
from tfx_largeout.compare.job import EarlierRun, Job, run_job
from tfx_largeout.compare.settings import DataSettings, TrainingSettings

WORKER = """
import json, sys
head = json.load(sys.stdin)["head"]
def send(**told):
    print(json.dumps({"peak_bytes": 5, **told}), flush=True)
send(stage="training", batch_size=6, steps_per_epoch=10, parameters=3, implementation="none",
     data={"classes": 4})
send(note="the shared library is missing")
for step in (0, 5):
    names = ["precision_at_1", "precision_at_3", "precision_at_5"]
    names += ["ps_precision_at_1", "exact_loss"]
    point = {"step": step, "epoch": step / 10, "seconds": step, "train_loss": float(sys.argv[1])}
    point = {**point, **dict.fromkeys(names, step / 10)}
    send(point=point, steps=step, seconds=step)
if head == "tf_nce":
    send(status="failed", error="ValueError: no")
else:
    send(status="done", steps=5, seconds=5.0)
"""


def run(tmp_path, *heads, loss="1", open_page=False, training=None, earlier=None, **fields):
    training = training or TrainingSettings()
    options = {head: {} for head in heads}
    job = Job(options, "a $ and a \\frac{", DataSettings(), training, **fields)
    folder = OutputFolder(str(tmp_path / "run"), add=earlier is not None)
    folder.make()
    return run_job(job, folder, [sys.executable, "-c", WORKER, loss], open_page, earlier), folder


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
    assert "cores" in page and "tensorflow" in page and "evaluations 4" in page
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


def earlier_run(folder):
    return EarlierRun.read(folder.results_json)


@pytest.mark.usefixtures("no_picture")
def test_heads_are_added_to_a_finished_run(tmp_path, capsys, monkeypatch):
    _, folder = run(tmp_path, "full_softmax", "tf_nce")
    (folder.tensorboard / "tf_nce").mkdir()
    (folder.tensorboard / "tf_nce" / "events.out.tfevents.1").touch()
    before = earlier_run(folder)
    with pytest.raises(ValueError, match="must be new to the results, or have failed there; got"):
        before.without(["midx", "full_softmax"])
    monkeypatch.setattr(job_module, "describe_machine", lambda: {"processor": "P", "cores": 3})
    # tf_nce has failed, and does so again.
    again = before.without(["tf_nce", "midx"])
    assert [result.head for result in again.results] == ["full_softmax"]
    monkeypatch.setattr(sys, "argv", ["tfx-largeout", "compare", "--add-to", "run"])
    code, _ = run(tmp_path, "tf_nce", "midx", earlier=again)
    after = earlier_run(folder)
    assert code == 1
    assert [r.head for r in after.results] == ["full_softmax", "tf_nce", "midx"]
    assert after.results[0] == before.results[0]
    assert after.configuration["command"] == before.configuration["command"]
    assert after.configuration["added_by"] == [sys.argv]
    assert "<dt>Added by command 1</dt>" in folder.page_html.read_text()
    assert "midx was trained later than the others, on another machine" in capsys.readouterr().out
    assert not (folder.tensorboard / "tf_nce" / "events.out.tfevents.1").exists()


@pytest.mark.usefixtures("no_picture")
def test_what_is_given_beside_add_to_must_be_as_it_was(tmp_path, capsys):
    _, folder = run(tmp_path, "full_softmax")
    common = ["compare", "--add-to", str(folder.path)]
    for arguments, message in (
        (["--heads", "full_softmax"], "--heads must be new to the results, or have failed"),
        (["--heads", "midx", "--hidden", "64"], "--hidden must be left out with --add-to, or be "),
        (["--heads", "midx", "--epochs", "2"], "--epochs must be left out with --add-to, .* None"),
        (["--heads", "midx", "--data", "x"], "--data must be left out"),
    ):
        assert main([*common, *arguments]) == 2
        assert re.search(message, capsys.readouterr().err)


@pytest.mark.usefixtures("no_picture")
def test_results_of_another_version_get_no_heads_added(tmp_path):
    _, folder = run(tmp_path, "full_softmax")
    content = json.loads(folder.results_json.read_text())
    del content["training"]["dropout"]
    folder.results_json.write_text(json.dumps(content))
    with pytest.raises(
        ValueError, match=r"this version .* has written; got .*\(KeyError: 'dropout'"
    ):
        earlier_run(folder)
