# SPDX-License-Identifier: Apache-2.0
"""Arguments: everything that ends before a head is trained."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tfx_largeout.compare import cli
from tfx_largeout.compare.cli import main
from tfx_largeout.compare.head_table import HEAD_TABLE
from tfx_largeout.compare.peers import PEERS


def test_list_shows_each_head_with_its_defaults(capsys):
    assert main(["compare", "--list"]) == 0
    listed = capsys.readouterr().out
    for row in HEAD_TABLE:
        assert row.name in listed and row.description in listed
        assert f"--learning-rate {row.default_options['learning_rate']}" in listed
    assert "\n    tf_idf_neighbors\n" in listed


def test_help_and_version(capsys):
    assert main(["compare", "--help"]) == 0
    assert "--budget SECONDS" in capsys.readouterr().out
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("tfx-largeout ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--heads", "lsh"], "--heads: must be one of full_softmax, .*; got 'lsh'"),
        (["--heads", "tf_nce,tf_nce"], "--heads: must name each head once; got 'tf_nce,tf_nce'"),
        (["--peers", "svm"], "--peers: must be none or some of omikuji, .*; got 'svm'"),
        (["--peers", "tf_idf_neighbors,tf_idf_neighbors"], "--peers: must name each peer once"),
        (["--trunk", "deep"], "--trunk: invalid choice: 'deep'"),
        (["--budget", "0"], "--budget: must be a number above 0; got '0'"),
        (["--epochs", "x"], "--epochs: must be a number above 0; got 'x'"),
        (["--epochs", "1", "--budget", "1"], "--budget: not allowed with argument --epochs"),
        (["--batch-size", "0"], "--batch-size: must be an integer of at least 1; got '0'"),
        (["--hidden", "1.5"], "--hidden: must be an integer of at least 1; got '1.5'"),
        (["--seed", "-1"], r"--seed: must be an integer in \[0, 2147483648\); got '-1'"),
        (["--features", "raw"], "--features: invalid choice: 'raw'"),
        (["--data", "nowhere"], "--data must be wordnet/hyper .* or a folder; got 'nowhere'"),
        (["--data", "x" * 300], "--data .*File name too long"),
        (["--train", "a.txt"], "--train and --test must be given together; got --train alone"),
        (["--train", "a", "--test", "b"], "--train must be a file that can be read; got 'a'"),
        (["--learning-rate", "tf_nce=-1"], "--learning-rate must be a number above 0; got '-1'"),
        (["--learning-rate", "lsh=1"], "--learning-rate must be for a chosen head .*'lsh=1'"),
        (["--heads", "full_softmax", "--num-sampled", "9"], "--num-sampled must be an option of"),
        (
            ["--trunk-learning-rate", "full_softmax=1"],
            "--trunk-learning-rate must be for a chosen head that has this option",
        ),
        (
            ["--trunk-optimizer", "same", "--trunk-learning-rate", "1"],
            "--trunk-learning-rate must be an option of a chosen head; got '1'",
        ),
        (["--output", __file__], "--output must be a folder; got the file"),
        (["--output", str(Path(__file__).parent)], "--output must be a new or an empty folder"),
        (["--bud", "3"], "unrecognized arguments: --bud 3"),
        (["extra"], "unrecognized arguments: extra"),
    ],
)
def test_a_bad_argument_gives_one_sentence(arguments, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["compare", *arguments]) == 2
    printed = capsys.readouterr().err
    assert printed.count("\n") == 1
    assert printed.startswith("tfx-largeout")
    assert re.search(message, printed), printed
    assert list(tmp_path.iterdir()) == []


def test_a_command_is_needed(capsys):
    assert main([]) == 2
    assert "COMMAND" in capsys.readouterr().err


def options_of(monkeypatch, *arguments):
    jobs = []
    monkeypatch.setattr(cli, "run_job", lambda job, folder, **_: jobs.append(job) or 0)
    assert main(["compare", *arguments]) == 0
    return jobs[0].heads


def test_a_trunk_learning_rate_is_for_heads_whose_trunk_has_an_optimizer(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    optimizers = "adam,full_softmax=same"
    heads = options_of(monkeypatch, "--trunk-optimizer", optimizers, "--trunk-learning-rate", "0.5")
    assert "trunk_learning_rate" not in heads["full_softmax"]
    assert heads["tf_nce"]["trunk_learning_rate"] == 0.5


def test_the_full_softmax_may_have_a_trunk_optimizer(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    heads = options_of(monkeypatch, "--trunk-optimizer", "full_softmax=sgd")
    assert heads["full_softmax"]["trunk_learning_rate"] == 0.02


def test_peers_that_are_not_installed_are_left_out_and_refused_by_name(monkeypatch, capsys):
    monkeypatch.setitem(PEERS, "omikuji", PEERS["omikuji"]._replace(package="not_there"))
    assert main(["compare", "--peers", "omikuji"]) == 2
    assert "must be installed; got 'omikuji'" in capsys.readouterr().err
    parser = cli._build_parsers()[0]
    assert "omikuji" not in parser.parse_args(["compare"]).peers
    assert "tf_idf_neighbors" in parser.parse_args(["compare"]).peers
    assert parser.parse_args(["compare", "--peers", "none"]).peers == []
