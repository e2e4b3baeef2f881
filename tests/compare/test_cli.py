# SPDX-License-Identifier: Apache-2.0
"""Arguments: everything that ends before a head is trained."""

from __future__ import annotations

import re
from pathlib import Path

import keras
import pytest
from compare.conftest import needs_two_optimizers

from tfx_largeout.compare import cli
from tfx_largeout.compare.cli import main
from tfx_largeout.compare.comparison import OutputFolder
from tfx_largeout.compare.head_options import without_unused
from tfx_largeout.compare.head_table import DEFAULT_HEADS, HEAD_TABLE, head_row
from tfx_largeout.compare.peers import PEERS


def test_list_shows_each_head_with_its_defaults(capsys):
    assert main(["compare", "--list"]) == 0
    listed = capsys.readouterr().out
    for row in HEAD_TABLE:
        assert row.name in listed and row.description in listed
        assert f"--trunk-learning-rate {row.default_options['trunk_learning_rate']}" in listed
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
        (["--schedule", "cosine"], "--schedule: invalid choice: 'cosine'"),
        (["--dropout", "1"], r"--dropout: must be a number in \[0, 1\); got '1'"),
        (["--hold-out", "x"], r"--hold-out: must be a number in \[0, 1\); got 'x'"),
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
        (["--train", "a", "b", "c", "--test", "d"], "--train must be one file, or .*; got 3"),
        (
            ["--head-learning-rate", "full_softmax=-1"],
            "--head-learning-rate must be a number above 0; got '-1'",
        ),
        (
            ["--head-learning-rate", "lsh=1"],
            "--head-learning-rate must be for a chosen head .*'lsh=1'",
        ),
        (["--heads", "full_softmax", "--num-sampled", "9"], "--num-sampled must be an option of"),
        (
            ["--head-optimizer", "full_softmax=same", "--head-learning-rate", "full_softmax=1"],
            "--head-learning-rate must be for a chosen head that has this option",
        ),
        (
            ["--head-optimizer", "complementary_sum=sgd"],
            "complementary_sum: head_optimizer must be one of row_adagrad, row_adam, row_sgd; got",
        ),
        (["--num-sampled", "5,7"], "--num-sampled must be given once for all heads; got '5,7'"),
        (
            ["--heads", "tf_nce", "--num-sampled", "tf_nce=5", "--num-sampled", "9,tf_nce=7"],
            "--num-sampled must be given once for head tf_nce; got 'tf_nce=5,9,tf_nce=7'",
        ),
        (
            ["--trunk-learning-rate", "1e-39"],
            r"--trunk-learning-rate must be in \[1.2e-38, 3.4e\+38\]; got",
        ),
        (["--budget", "1e39"], r"--budget: must be in \[1.2e-38, 3.4e\+38\]; got '1e39'"),
        (["--hidden", "2147483648"], "--hidden: must be at most 2147483647; got '2147483648'"),
        (
            ["--sampler", "bernoulli"],
            "tf_sampled_softmax_row_adam: sampler must be one of log_uniform, ",
        ),
        (["--overwrite"], "--overwrite must come with --output; got it alone"),
        (["--output", __file__], "--output must be a folder; got the file"),
        (["--output", str(Path(__file__).parent)], "--output must be a new or an empty folder"),
        (["--seeds", "0"], "--seeds: must be an integer of at least 1; got '0'"),
        (["--heads", ":x"], "must be a name, or package.module:function; got ':x'"),
        (["--heads", "no.such:f"], r"can be imported; got 'no.such:f' \(ModuleNotFoundError: No"),
        (["--heads", "os:nothing"], "a function of the module; got 'os:nothing', where no nothing"),
        (["--heads", "os:name"], "must name a function; got 'os:name', which is 'posix'"),
        (["--heads", "os.path:join,os.path:join"], "must name each head once"),
        (["--add-to", "nowhere"], "--add-to must come with --heads or --peers; got neither"),
        (["--add-to", "x", "--heads", "midx"], "--add-to must be a folder with a results.json; "),
        (["--add-to", "x", "--output", "y"], "--output must not be given with --add-to; got both"),
        (["--add-to", "x", "--long"], "--long must not be given with --add-to; got both"),
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


def job_of(monkeypatch, *arguments):
    jobs = []
    monkeypatch.setattr(cli, "run_job", lambda job, folder, **_: jobs.append(job) or 0)
    assert main(["compare", *arguments]) == 0
    return jobs[0]


def options_of(monkeypatch, *arguments):
    return job_of(monkeypatch, *arguments).heads


@needs_two_optimizers
def test_a_head_learning_rate_is_for_heads_that_have_an_optimizer(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    optimizers = "tf_sampled_softmax=adam,full_softmax=same"
    heads = options_of(monkeypatch, "--head-optimizer", optimizers, "--head-learning-rate", "0.5")
    assert "head_learning_rate" not in heads["full_softmax"]
    assert heads["tf_sampled_softmax"]["head_learning_rate"] == 0.5


@needs_two_optimizers
def test_the_examples_of_help_change_what_they_name_and_nothing_else(
    monkeypatch, tmp_path, capsys, tiny_data
):
    monkeypatch.chdir(tmp_path)
    main(["compare", "--help"])
    lines = capsys.readouterr().out.partition("\nexamples:\n")[2].split("\n")
    examples = [line.split()[2:] for line in lines if line.strip()]
    assert len(examples) == 3
    found = []
    for arguments in examples:
        arguments = [str(tiny_data) if "/" in word else word for word in arguments]
        found.append(options_of(monkeypatch, *arguments))
    defaults = {head: without_unused(head_row(head).default_options) for head in DEFAULT_HEADS}
    assert found[0] == defaults
    assert found[1] == {
        head: without_unused(head_row(head).default_options) for head in ("exact_softmax", "midx")
    }
    defaults["full_softmax"]["head_learning_rate"] = 0.01
    assert found[2] == defaults


@needs_two_optimizers
@pytest.mark.parametrize(
    ("arguments", "rates"),
    [
        (["--head-optimizer", "tf_nce=adam"], {"head_learning_rate": 0.001}),
        (["--head-optimizer", "tf_nce=row_sgd"], {}),
        (["--head-optimizer", "adam", "--head-learning-rate", "3"], {"head_learning_rate": 3.0}),
        (["--trunk-optimizer", "row_adagrad"], {"trunk_learning_rate": 0.01}),
        (["--trunk-optimizer", "row_rmsprop"], {}),  # the default one, with its tuned rate
    ],
)
def test_the_default_rate_is_that_of_the_optimizer(arguments, rates, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    options = options_of(monkeypatch, "--heads", "tf_nce", *arguments)["tf_nce"]
    names = ("head_learning_rate", "trunk_learning_rate")
    defaults = {name: head_row("tf_nce").options[name] for name in names}
    assert {name: options[name] for name in defaults} == {**defaults, **rates}


@pytest.mark.all_cases
@pytest.mark.parametrize(
    ("arguments", "features"),
    [
        ([], "tf_idf"),
        (["--data", "wordnet/lemma"], "tf_idf"),
        (["--data", "TINY"], "counts"),
        (["--data", "TINY", "--features", "tf_idf"], "tf_idf"),
        (["--features", "counts"], "counts"),
    ],
)
def test_features_are_weighted_where_the_data_are_known(
    arguments, features, monkeypatch, tmp_path, tiny_data
):
    monkeypatch.chdir(tmp_path)
    arguments = [str(tiny_data) if word == "TINY" else word for word in arguments]
    assert job_of(monkeypatch, *arguments).data.features == features


def test_a_long_run_has_more_of_all_but_what_is_given(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    long = job_of(monkeypatch, "--long")
    assert long.heads.keys() > {*DEFAULT_HEADS, "midx"}
    assert (long.training.seeds, long.training.budget) == (3, 60)
    given = job_of(monkeypatch, "--long", "--seeds", "1", "--heads", "midx", "--epochs", "2")
    assert list(given.heads) == ["midx"]
    assert (given.training.seeds, given.training.budget, given.training.epochs) == (1, None, 2)


def test_a_head_of_the_users_own_has_options_of_the_models_optimizer(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_module.py").write_text("def mine(num_classes, label_counts, seed): ...")
    heads = ["--heads", "own_module:mine,midx", "--trunk-learning-rate", "mine=0.5"]
    job = job_of(monkeypatch, *heads)
    assert (
        job.heads["mine"]["trunk_learning_rate"] == 0.5 and "num_sampled" not in job.heads["mine"]
    )
    assert job.functions == {"mine": "own_module:mine"}


def test_what_the_user_chose_is_known_where_it_is_the_default(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    default = head_row("complementary_sum").options["num_sampled"]
    job = job_of(monkeypatch, "--num-sampled", f"complementary_sum={default}")
    assert job.chosen["complementary_sum"] == ("num_sampled",)
    assert job.chosen["full_softmax"] == ()


def test_a_keras_without_multi_optimizer_is_met_before_the_first_head(monkeypatch, capsys):
    monkeypatch.delattr(keras.optimizers, "MultiOptimizer", raising=False)
    assert main(["compare", "--head-optimizer", "full_softmax=adam"]) == 2
    assert "head_optimizer must be same with a Keras older than" in capsys.readouterr().err


def test_a_folder_in_which_another_run_is_at_work_is_refused(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(cli, "run_job", lambda job, folder, **_: 0)
    arguments = ["compare", "--output", str(tmp_path / "run"), "--overwrite"]
    other = OutputFolder(arguments[2])
    other.make()
    other.results_json.write_text('{"versions": {"tfx_largeout": "0.1.0"}}')
    with other.claimed():
        assert main(arguments) == 2
        assert "--output must not be in use by a run that goes on" in capsys.readouterr().err
    assert main(arguments) == 0
    assert main(arguments) == 0


def test_peers_that_are_not_installed_are_left_out_and_refused_by_name(monkeypatch, capsys):
    monkeypatch.setitem(PEERS, "omikuji", PEERS["omikuji"]._replace(package="not_there"))
    assert main(["compare", "--peers", "omikuji"]) == 2
    assert "must be installed; got 'omikuji'" in capsys.readouterr().err
    parser = cli._build_parsers()[0]
    assert "omikuji" not in parser.parse_args(["compare"]).peers
    assert "tf_idf_neighbors" in parser.parse_args(["compare"]).peers
    assert parser.parse_args(["compare", "--peers", "none"]).peers == []
