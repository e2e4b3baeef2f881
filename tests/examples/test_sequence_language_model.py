# SPDX-License-Identifier: Apache-2.0
"""The language model of sequences: it reads its inputs, ignores padding, and learns."""

from __future__ import annotations

import importlib.util
import math
from pathlib import Path

import numpy as np
import pytest
from variants import each_once

import tfx_largeout as tlo

EXAMPLE = Path(__file__).parents[2] / "examples" / "sequence_language_model.py"
TEXT = """\
the cat sat on the mat and the dog sat on the rug

the dog saw the cat
a cat and a dog sat on a mat
the old dog sat by the old cat on the old rug
"""


@pytest.fixture(scope="module")
def example():
    spec = importlib.util.spec_from_file_location("sequence_language_model", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def options(text: Path, **others: object) -> list[str]:
    chosen = {
        "length": 6,
        "width": 16,
        "candidates": 8,
        "batch-size": 8,
        "learning-rate": 0.02,
        "held-out": 20,
        "logs": text.parent / "runs",
        **others,
    }
    return [str(text), *(str(part) for name in chosen for part in (f"--{name}", chosen[name]))]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("head", "trunk"),
    each_once(["sampled", "tied", "exact", "tied_exact", "dense"], ["transformer", "lstm"]),
)
def test_learns_a_small_text(example, tmp_path, trunk, head):
    (tmp_path / "text.txt").write_text(TEXT * 30)
    history = example.main(
        options(tmp_path / "text.txt", trunk=trunk, head=head, epochs=8, blocks=1, dropout=0.0)
    )
    assert history["val_perplexity"][-1] < 4
    assert list((tmp_path / "runs").rglob("events.out.*"))


def test_a_long_line_goes_on_in_the_next_row(example):
    ids = {"a": 2, "b": 3, "c": 4, "d": 5}
    rows = example.sequences([["a", "b", "c", "d"], ["b"]], ids, 3)
    np.testing.assert_array_equal(rows, [[1, 2, 3, 4], [4, 5, 1, 0], [1, 3, 1, 0]])


@pytest.mark.parametrize("trunk", ("transformer", "lstm"))
def test_padding_does_not_count(example, tmp_path, trunk):
    """All words count alike, by NumPy from the logits of a plain Keras model."""
    arguments = example.parse(options(tmp_path / "text.txt", trunk=trunk, dropout=0.0))
    rows = np.array([[1, 2, 3, 4, 1, 0, 0], [1, 3, 1, 0, 0, 0, 0]], np.int32)
    model = example.build_model(6, np.arange(6), arguments, steps=10)
    loss = model.evaluate(example.batches(rows, 2, shuffle=False), verbose=0)[0]
    one_by_one = model.evaluate(example.batches(rows, 1, False), verbose=0, return_dict=True)
    logits = np.float64(tlo.to_keras(model).predict(rows[:, :-1], verbose=0))
    log_p = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
    losses = -np.take_along_axis(log_p, rows[:, 1:, np.newaxis], axis=-1)[..., 0]
    expected = losses[rows[:, 1:] != example.PADDING].mean()
    assert loss == pytest.approx(expected, rel=1e-5)
    assert one_by_one["perplexity"] == pytest.approx(math.exp(expected), rel=1e-5)


@pytest.mark.parametrize("held_out", [0, 4])
def test_some_lines_are_held_out_and_not_all(example, tmp_path, held_out):
    (tmp_path / "text.txt").write_text(TEXT)
    with pytest.raises(SystemExit, match=r"--held-out must be in \(0, 4\), the lines; got"):
        example.main(options(tmp_path / "text.txt", **{"held-out": held_out}))
