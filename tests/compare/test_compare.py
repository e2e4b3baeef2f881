# SPDX-License-Identifier: Apache-2.0
"""The whole job, end to end, on tiny data."""

from __future__ import annotations

import csv
import functools
import json
import os
import signal
import sys

import numpy as np
import pytest
import tensorflow as tf
from child import run_child, start_child

from tfx_largeout.compare import cli
from tfx_largeout.compare.cli import main

SMALL = ["--batch-size", "64", "--hidden", "16"]
LEARNING = ["--trunk-optimizer", "adam", "--trunk-learning-rate", "0.02", "--dropout", "0"]
LEARNING += ["--head-learning-rate", "0.02", "--schedule", "constant", "--bias", "zeros"]
LEARNING += ["--evaluations", "6"]
HEADS = ("full_softmax", "tf_nce", "complementary_sum")


def read_csv(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def number(text):
    return float(text) if text else None


@pytest.fixture(scope="module")
def finished(tiny_data, tmp_path_factory):
    """A run of three heads. tf_nce fails: it wants more candidates than there are classes."""
    folder = tmp_path_factory.mktemp("compare") / "run"
    arguments = ["compare", "--data", str(tiny_data), "--output", str(folder), "--epochs", "4"]
    arguments += [*SMALL, *LEARNING, "--num-sampled", "50,tf_nce=5000"]
    arguments += ["--heads", ",".join(HEADS), "--neighbors", "no"]
    arguments += ["--peers", "tf_idf_neighbors"]
    process = run_child(folder.parent, "-m", "tfx_largeout.compare", *arguments[1:])
    return folder, process, arguments


def test_a_head_that_fails_is_reported_and_the_others_go_on(finished):
    folder, process, _ = finished
    assert process.returncode == 1
    reason = (
        "ValueError: num_sampled must be at most num_classes=200 for unique candidates; got 5000"
    )
    assert f"tf_nce failed: {reason}" in process.stdout
    statuses = {row["head"]: row["status"] for row in read_csv(folder / "summary.csv")}
    assert statuses.pop("tf_nce") == "failed"
    done = [name for name in HEADS if name != "tf_nce"]
    assert statuses == dict.fromkeys([*done, "tf_idf_neighbors"], "done")
    assert "Traceback" in (folder / "logs" / "tf_nce.log").read_text()


def test_progress_has_a_line_for_each_evaluation(finished):
    _, process, _ = finished
    lines = [line for line in process.stderr.splitlines() if line.startswith("full_softmax")]
    assert len(lines) == 1 + 1 + 6
    assert "epoch 4.00/4  step 40  loss " in lines[-1]


def test_table_csv_and_json_agree(finished):
    folder, process, _ = finished
    report = json.loads((folder / "results.json").read_text())
    rows = read_csv(folder / "summary.csv")
    assert [head["head"] for head in report["heads"]] == [row["head"] for row in rows]
    for head, summary, row in zip(report["heads"], report["summary"], rows, strict=True):
        for name, value in summary.items():
            text = row[name]
            assert text == ("" if value is None else str(value)), name
        (line,) = [x for x in process.stdout.splitlines() if x.split()[:1] == [row["head"]]][:1]
        if head["head"] == "tf_idf_neighbors":
            assert line.split()[1] == "-" and row["steps"] == "0"
        elif head["status"] == "done":
            assert line.split()[1] == row["steps"] == "40"
        if head["status"] == "done":
            assert line.split()[5] == f"{100 * float(row['precision_at_1']):.2f}"
            assert head["curve"][-1]["precision_at_1"] == float(row["precision_at_1"])
    curves = read_csv(folder / "curves.csv")
    points = [point for head in report["heads"] for point in head["curve"]]
    assert len(curves) == len(points) == (len(HEADS) - 1) * 7 + 1  # all but tf_nce; neighbors
    assert [number(row["train_loss"]) for row in curves] == [p["train_loss"] for p in points]


def test_json_says_how_it_was_made(finished):
    folder, _, arguments = finished
    report = json.loads((folder / "results.json").read_text())
    assert report["command"][1:] == arguments[1:]
    assert report["training"]["epochs"] == 4 and report["training"]["budget"] is None
    assert report["heads"][0]["options"]["trunk_learning_rate"] == 0.02
    assert report["heads"][0]["data"] == {
        "train_examples": 640,
        "test_examples": 100,
        "features": 50,
        "classes": 200,
    }
    assert report["versions"]["tensorflow"] == tf.__version__
    assert report["machine"]["cores"] >= 1


def test_the_full_softmax_learns(finished):
    folder, _, _ = finished
    curve = json.loads((folder / "results.json").read_text())["heads"][0]["curve"]
    assert curve[0]["precision_at_1"] < 0.1 < 0.5 < curve[-1]["precision_at_1"]
    assert curve[-1]["exact_loss"] < curve[0]["exact_loss"]


def test_the_picture(finished):
    folder, _, _ = finished
    assert (folder / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_tensorboard_has_a_run_a_head(finished):
    folder, _, _ = finished
    curves = read_csv(folder / "curves.csv")
    for head in ("full_softmax", "complementary_sum"):
        (file,) = (folder / "tensorboard" / head).iterdir()
        records = tf.data.TFRecordDataset(str(file)).as_numpy_iterator()
        events = [tf.compat.v1.Event.FromString(record) for record in records]
        tags = {value.tag for event in events for value in event.summary.value}
        assert {"loss/train", "loss/exact", "precision/at_1"} <= tags
        logged = [
            (event.step, value.simple_value, event.wall_time - events[0].wall_time)
            for event in events
            for value in event.summary.value
            if value.tag == "precision/at_1"
        ]
        expected = [
            (int(row["step"]), float(row["precision_at_1"]), float(row["seconds"]))
            for row in curves
            if row["head"] == head
        ]
        np.testing.assert_allclose(logged, expected, rtol=1e-6, atol=1e-5)


def test_a_second_run_does_not_overwrite_the_first(finished, capsys):
    folder, _, arguments = finished
    before = (folder / "results.json").read_bytes()
    assert main(arguments) == 2
    assert "--output must be a new or an empty folder" in capsys.readouterr().err
    assert (folder / "results.json").read_bytes() == before


@pytest.mark.thorough
def test_the_same_seed_gives_the_same_curve(tiny_data, tmp_path):
    curves = []
    for name in ("first", "second"):
        arguments = ["--heads", "tf_sampled_softmax", "--num-sampled", "50", "--seed", "3"]
        arguments += ["--peers", "none"]
        arguments += [*SMALL, *LEARNING, "--epochs", "2", "--output", str(tmp_path / name)]
        assert main(["compare", "--data", str(tiny_data), *arguments]) == 0
        curves.append(read_csv(tmp_path / name / "curves.csv"))
    # TensorFlow may add up in another order each time.
    names = ["step", "train_loss", "precision_at_1", "exact_loss"]
    first, second = ([[number(row[name]) for name in names] for row in curve] for curve in curves)
    assert first[0] == second[0]  # the untrained model, which has no training loss
    np.testing.assert_allclose(first[1:], second[1:], rtol=1e-4)


def test_malformed_data_are_named_once(tmp_path, capsys, monkeypatch):
    """With a worker that pretends."""
    worker = [sys.executable, "-c", 'print(\'{"data_error": "test.txt:2: bad"}\')']
    for name in ("train.txt", "test.txt"):
        (tmp_path / name).touch()
    monkeypatch.setattr(cli, "run_job", functools.partial(cli.run_job, worker=worker))
    output = tmp_path / "run"
    assert main(["compare", "--data", str(tmp_path), "--output", str(output)]) == 2
    assert capsys.readouterr().err.count("test.txt:2: bad") == 1
    assert not output.exists()


@pytest.mark.thorough
def test_malformed_data_leave_earlier_results_alone(finished, tmp_path, capsys):
    folder, _, _ = finished
    before = {path: path.is_file() and path.read_bytes() for path in folder.rglob("*")}
    (tmp_path / "train.txt").write_text("1 3 5\n0 0:1\n")
    (tmp_path / "test.txt").write_text("1 3 5\n0 7:1\n")
    arguments = ["--data", str(tmp_path), "--output", str(folder), "--overwrite"]
    assert main(["compare", *arguments]) == 2
    message = "test.txt:2: a feature must be an integer in [0, 3)"
    assert capsys.readouterr().err.count(message) == 1
    assert {path: path.is_file() and path.read_bytes() for path in folder.rglob("*")} == before


@pytest.mark.thorough
def test_ctrl_c_keeps_what_is_done(tiny_data, tmp_path):
    folder = tmp_path / "run"
    arguments = ["--data", str(tiny_data), *SMALL, *LEARNING, "--num-sampled", "50"]
    arguments += [
        "--heads",
        "full_softmax,tf_sampled_softmax,tf_nce,complementary_sum",
        "--budget",
        "1.5",
        "--output",
        str(folder),
        "--peers",
        "none",
    ]
    process = start_child(
        tmp_path,
        "-m",
        "tfx_largeout.compare",
        *arguments,
        # A shell that runs pytest in the background makes its children ignore Ctrl-C.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    for line in process.stderr:
        if line.startswith("tf_sampled_softmax") and "P@1" in line:
            break
    os.kill(process.pid, signal.SIGINT)
    output, errors = process.communicate()
    assert process.returncode == 130
    assert "tf_sampled_softmax was interrupted after" in output
    assert "Interrupted. Not trained: tf_nce, complementary_sum." in errors
    heads = json.loads((folder / "results.json").read_text())["heads"]
    assert [head["status"] for head in heads] == ["done", "interrupted"]
    assert [len(head["curve"]) > 0 for head in heads] == [True, True]
    assert (folder / "curves.png").exists()


@pytest.mark.thorough
def test_heads_over_workers_come_as_far_as_in_one_process(tiny_data, tmp_path):
    """`tf_nce` can't spread its classes; the other heads are trained."""
    common = ["--data", str(tiny_data), "--epochs", "4", *SMALL, *LEARNING, "--num-sampled", "50"]
    common += ["--peers", "none"]
    points = {}
    for size in (1, 2):
        folder = tmp_path / str(size)
        heads = ["--heads", "complementary_sum,full_softmax" + ",tf_nce" * (size == 2)]
        arguments = [*heads, "--output", str(folder), "--workers", str(size), *common]
        process = run_child(tmp_path, "-m", "tfx_largeout.compare", *arguments)
        assert process.returncode == (size == 2), process.stdout + process.stderr
        report = json.loads((folder / "results.json").read_text())
        points[size] = [head["curve"] for head in report["heads"]]
        parameters = [head["parameters"] for head in report["heads"][:2]]
        assert parameters == [200 * 17 + 50 * 16 + 16 + 4, 200 * 17 + 50 * 16 + 16]
        assert len(list((folder / "tensorboard").glob("*/events*"))) == 2
    assert "3 heads over 2 workers, 4 epochs each" in process.stderr
    assert "tf_nce failed: RuntimeError: TFNCEHead" in process.stdout
    assert points[2].pop() == []
    for alone, together in zip(points[1], points[2], strict=True):
        assert [p["step"] for p in alone] == [p["step"] for p in together]
        assert alone[-1]["precision_at_1"] > 0.5
        for name in ("train_loss", "exact_loss", "precision_at_1", "precision_at_5"):
            found, expected = ([p[name] for p in curve[1:]] for curve in (together, alone))
            np.testing.assert_allclose(found, expected, rtol=1e-4, err_msg=name)
