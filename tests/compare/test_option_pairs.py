# SPDX-License-Identifier: Apache-2.0
"""Options of the command in pairs: a head is trained, or an error comes at once."""

from __future__ import annotations

import itertools
import math

import keras
import pytest
from compare.conftest import write_examples
from variants import cases_of

from tfx_largeout.compare import cli
from tfx_largeout.compare.data import load
from tfx_largeout.compare.head_options import (
    BIASES,
    HASH_FAMILIES,
    HEAD_OPTIONS,
    OPTIMIZERS,
    ROW_OPTIMIZERS,
    SAMPLERS,
)
from tfx_largeout.compare.head_table import HEAD_TABLE
from tfx_largeout.compare.settings import SCHEDULES, WorkerSettings
from tfx_largeout.compare.training import train
from tfx_largeout.tensorflow_internals import custom_gradients_forgotten

FEW = ("fused_adam", "row_rmsprop", "sgd")
VALUES = {
    "trunk_optimizer": FEW,
    "trunk_learning_rate": ("0.01", "0.1"),
    "head_optimizer": tuple(ROW_OPTIMIZERS),
    "neighbors": ("no", "yes"),
    "head_learning_rate": ("0.01", "1"),
    "bias": BIASES,
    "num_sampled": ("1", "20"),
    "num_selected": ("1", "20"),
    "backward": ("selected", "all"),
    "products": ("float32", "bfloat16"),
    "num_true": ("1", "3"),
    "sampler": SAMPLERS,
    "num_found": ("1", "20"),
    "candidates": ("per-example", "shared"),
    "num_words": ("2", "9"),
    "top_k": ("1", "9"),
    "hash_family": HASH_FAMILIES,
    "hashes_per_table": ("1", "3"),
    "num_tables": ("1", "9"),
}
OF_ALL_HEADS = {
    "dropout": ("0", "0.5"),
    "schedule": SCHEDULES,
    "hold_out": ("0", "0.2"),
    "features": ("counts", "tf_idf"),
    "hidden": ("8", "16"),
    "batch_size": ("32", "1000"),
    "evaluations": ("1", "3"),
    "seed": ("0", "5"),
    "epochs": ("0.01", "1"),
    "propensity_a": ("0.55", "0.6"),
    "propensity_b": ("0.4", "2.6"),
}
SMALL = {"epochs": "1", "hidden": "16", "batch_size": "32", "evaluations": "1"}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny")
    write_examples(folder / "train.txt", 96, seed=1)
    write_examples(folder / "test.txt", 40, seed=2)
    return folder


@pytest.fixture
def compare(tiny, tmp_path, monkeypatch, capsys):
    """Runs the command in this process; returns its error, or the curve of each head."""
    monkeypatch.chdir(tmp_path)
    jobs = []
    monkeypatch.setattr(cli, "run_job", lambda job, folder, **_: jobs.append(job) or 0)

    def run(head, **options):
        options = {"heads": head, "data": str(tiny), "peers": "none", **SMALL, **options}
        flags = [("--" + name.replace("_", "-"), value) for name, value in options.items()]
        code = cli.main(["compare", *itertools.chain(*flags)])
        if code:
            message = capsys.readouterr().err
            assert code == 2 and message.count("\n") == 1, message
            return message
        job, points = jobs.pop(), []

        def send(**told):
            if "point" in told:
                points.append({k: v for k, v in told["point"].items() if k != "seconds"})

        chosen, events = job.chosen[head], str(tmp_path / "events")
        settings = WorkerSettings(head, job.heads[head], job.data, job.training, events, chosen)
        with custom_gradients_forgotten():
            train(settings, *load(job.data), send)
        keras.backend.clear_session()
        return points

    return run


def covering(values):
    """Rows {name: value} with each pair of values of two names; chosen greedily."""
    left = {
        frozenset([(a, x), (b, y)])
        for a, b in itertools.combinations(values, 2)
        for x, y in itertools.product(values[a], values[b])
    }
    while left:
        row = dict(min(left, key=sorted))
        for name in values:
            if name not in row:
                row[name] = max(values[name], key=lambda value: _count_new(row, name, value, left))
        left -= {frozenset(pair) for pair in itertools.combinations(row.items(), 2)}
        yield row


def _count_new(row, name, value, left):
    return sum(frozenset([item, (name, value)]) in left for item in row.items())


def without_void(options):
    """Options that `choose` leaves out because another option disables them."""
    void = {"head_learning_rate"} if options.get("head_optimizer") == "same" else set()
    void |= {"num_selected"} if options.get("backward") == "all" else set()
    return {name: value for name, value in options.items() if name not in void}


def values_of(row):
    own = {name: values for name, values in VALUES.items() if name in row.options}
    if not row.updates_itself:
        own["head_optimizer"] = ("same", *FEW)
    if row.name.startswith("tf_"):
        own["sampler"] = ("log_uniform", "uniform", "unigram")
    if "top_k" in own and "num_found" in own:
        own["num_found"] = ("9", "20")  # at least top_k
    return own


def assert_trained(result):
    assert not isinstance(result, str), result
    assert result[-1]["step"] > 0
    assert all(math.isfinite(point["exact_loss"]) for point in result)
    assert all(math.isfinite(point["train_loss"]) for point in result[1:])


def test_the_values_are_of_all_options_that_there_are():
    assert VALUES.keys() == {option.name for option in HEAD_OPTIONS}
    parser = cli._build_parsers()[1]
    others = {"help", "list", "heads", "peers", "data", "train", "test", "workers"}
    others |= {"output", "overwrite", "open", "budget", "add_to", "seeds", "long"}
    flags = {action.dest for action in parser._actions}
    assert flags == VALUES.keys() | OF_ALL_HEADS.keys() | others


@pytest.mark.thorough
@cases_of("row", HEAD_TABLE)
def test_a_head_is_trained_with_any_two_of_its_options(row, compare):
    for options in covering({**values_of(row), **OF_ALL_HEADS}):
        assert_trained(compare(row.name, **without_void(options)))


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("head", "optimizer"),
    [
        *itertools.product(["full_softmax", "tf_nce"], OPTIMIZERS),
        *itertools.product(["complementary_sum"], ROW_OPTIMIZERS),
    ],
)
def test_any_optimizer_goes_with_any_optimizer_of_the_trunk(head, optimizer, compare):
    for trunk_optimizer in OPTIMIZERS:
        assert_trained(compare(head, head_optimizer=optimizer, trunk_optimizer=trunk_optimizer))


@pytest.mark.thorough
@cases_of("row", HEAD_TABLE)
def test_no_option_of_a_head_is_ignored(row, compare):
    numbers = ("num_sampled", "num_found", "num_selected")
    some = {name: "20" for name in numbers if name in row.options}  # fewer than all classes
    if "top_k" in row.options:
        some["top_k"] = "9"
    if "hash_family" in row.options:
        some["hash_family"] = "simhash"  # by inner products, small rows of labels find nothing yet
    for name, (first, *_, last) in values_of(row).items():
        if name == "neighbors":  # a row more: see test_training.py
            continue
        one, again, other = (
            compare(row.name, **without_void({**some, name: value}))
            for value in (first, first, last)
        )
        assert one == again, name  # the comparison is not noise
        assert one != other, name


@pytest.mark.thorough
def test_no_option_of_all_heads_is_ignored(compare):
    for name, (first, *_, last) in OF_ALL_HEADS.items():
        one, other = (compare("full_softmax", **{name: value}) for value in (first, last))
        assert one != other, name


@pytest.mark.all_cases
@pytest.mark.parametrize(
    ("head", "options", "message"),
    [
        ("tf_nce", {"sampler": "bernoulli"}, "tf_nce: sampler must be one of log_uniform, "),
        ("wta_top_k", {"top_k": "9", "num_found": "3"}, "k must be at most num_found=3; got 9"),
        ("wta_top_k", {"hidden": "1"}, "wta_top_k: "),
        ("exact_softmax", {"backward": "all", "num_selected": "9"}, "--num-selected must be an "),
        (
            "full_softmax",
            {"head_optimizer": "same", "head_learning_rate": "1"},
            "--head-learning-rate ",
        ),
        ("midx", {"head_optimizer": "adam"}, "midx: head_optimizer must be one of row_adagrad, "),
    ],
)
def test_options_that_do_not_go_together_are_refused_at_once(head, options, message, compare):
    assert message in compare(head, **options)
