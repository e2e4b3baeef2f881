# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import importlib.util
import lzma
from pathlib import Path

import numpy as np
import pytest
from variants import thorough

EXAMPLE = Path(__file__).parents[2] / "examples" / "ngram_language_model.py"

TEXT = """\
the cat sat on the mat and the dog sat on the rug
the dog saw the cat and the cat saw the dog
a cat and a dog sat on a mat
the old dog sat by the old cat on the old rug
"""
PAIRS = "cat\tdog\t9.0\nmat\trug\t8.5\ncat\tsat\t2.0\nold\tthe\t1.0\nunicorn\tcat\t5.0\n"


@pytest.fixture(scope="module")
def example():
    spec = importlib.util.spec_from_file_location("ngram_language_model", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    "loss",
    [
        "exact_softmax",
        "sampled",
        "z_loss",
        *thorough("softmax", "spherical_softmax", "taylor_softmax"),
    ],
)
def test_learns_a_small_text(example, tmp_path, loss):
    with lzma.open(tmp_path / "text.xz", "wt") as file:
        file.write(TEXT * 20)
    (tmp_path / "pairs.txt").write_text(PAIRS)
    options = {
        "--loss": loss,
        "--similarity": tmp_path / "pairs.txt",
        "--order": 3,
        "--embedding": 8,
        "--hidden": 16,
        "--batch-size": 16,
        "--epochs": 3,
        "--steps-per-epoch": 40,
        "--learning-rate": 0.02 if loss == "sampled" else 0.5,
        "--head-learning-rate": 0.02 if loss == "sampled" else 0.5,
        "--held-out": 100,
        "--logs": tmp_path / "runs",
        "--csv": tmp_path / "epochs.csv",
    }
    command = [str(tmp_path / "text.xz")]
    for name, value in options.items():
        command += [name, str(value)]
    history = example.main(command)
    assert history["loss"][-1] < history["loss"][0]
    assert history["val_precision_at_1"][-1] > 0.3
    assert all(-1 <= value <= 1 for value in history["similarity"])
    assert len((tmp_path / "epochs.csv").read_text().splitlines()) == 1 + 3
    assert list((tmp_path / "runs").rglob("events.out.*"))


def test_spearman_shares_the_ranks_of_ties(example):
    left, right = np.array([3.0, 1.0, 1.0, 5.0]), np.array([30.0, 10.0, 12.0, 40.0])
    ranks = np.corrcoef([3, 1.5, 1.5, 4], [3, 1, 2, 4])[0, 1]
    assert example.spearman(left, right) == pytest.approx(ranks)
    assert example.spearman(left, -left) == pytest.approx(-1)
