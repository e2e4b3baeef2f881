# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np
import pytest

from tfx_largeout.datasets import read_predictions, write_predictions

NAMES = ["best.txt", "best.txt.gz", "best.xz", "best.bz2", "best.npz"]


def draw(number: int, k: int, classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Scores of every size in falling order, and ids, with places without any at the end."""
    rng = np.random.default_rng(number)
    scores = rng.normal(size=(number, k)) * 10.0 ** rng.integers(-30, 30, (number, k))
    scores = -np.sort(-scores.astype(np.float32), axis=1)
    ids = np.array([rng.permutation(classes)[:k] for _ in range(number)]).reshape(number, k)
    missing = np.arange(k) >= rng.integers(0, k + 1, (number, 1))
    missing[:1] = False
    return np.where(missing, -np.inf, scores), np.where(missing, -1, ids)


@pytest.mark.all_cases
@pytest.mark.parametrize("name", NAMES)
def test_round_trip(tmp_path, name):
    for number in (1, 40):
        scores, ids = draw(number, 5, 300)
        write_predictions(tmp_path / name, scores, ids, 300)
        read_scores, read_ids = read_predictions(tmp_path / name)
        np.testing.assert_array_equal(read_scores, scores)
        np.testing.assert_array_equal(read_ids, ids)
        assert (read_scores.dtype, read_ids.dtype) == (np.float32, np.int64)


def test_what_is_in_the_files(tmp_path):
    scores, ids = [[0.5, 0.1], [1e-20, -np.inf], [3, 3]], [[4, 2], [0, -1], [1, 0]]
    write_predictions(tmp_path / "best.txt", scores, ids, 7)
    assert (tmp_path / "best.txt").read_text() == "3 7\n4:0.5 2:0.1\n0:1e-20\n1:3.0 0:3.0\n"
    write_predictions(tmp_path / "best.npz", scores, ids, 7)
    sparse = pytest.importorskip("scipy.sparse")
    expected = np.zeros([3, 7], np.float32)
    expected[[0, 0, 1, 2, 2], [4, 2, 0, 1, 0]] = [0.5, 0.1, 1e-20, 3, 3]
    np.testing.assert_array_equal(sparse.load_npz(tmp_path / "best.npz").toarray(), expected)
    assert read_predictions(tmp_path / "best.npz")[1].tolist() == [[4, 2], [0, -1], [0, 1]]


def test_reads_what_others_wrote(tmp_path):
    path = tmp_path / "best.txt"
    path.write_text("3 9\n1:0.5 8:2 0:0.5\n\n7:-1\n")
    scores, ids = read_predictions(path)
    assert ids.tolist() == [[8, 0, 1], [-1, -1, -1], [7, -1, -1]]
    assert scores.tolist() == [[2, 0.5, 0.5], [-np.inf] * 3, [-1, -np.inf, -np.inf]]
    path.write_text("0 9\n")
    assert read_predictions(path)[1].shape == (0, 0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", ":1: the header must be two integers .* examples and labels; got ''"),
        ("2 9\n1:1\n", ":2: the header promises 2 examples; got 1"),
        ("1 9\n9:1\n", r":2: a label must be an integer in \[0, 9\); got '9'"),
        ("1 9\n1:1 1:2\n", ":2: a label must not occur twice in a line; got 1 again"),
        ("1 9\n1:inf\n", ":2: the value of label 1 must be a finite float32 number; got 'inf'"),
        ("1 9\n3\n", ":2: a label must be written id:value; got '3'"),
    ],
)
def test_malformed_files(tmp_path, text, message):
    (tmp_path / "best.txt").write_text(text)
    with pytest.raises(ValueError, match=rf"best\.txt{message}"):
        read_predictions(tmp_path / "best.txt")


@pytest.mark.parametrize(
    ("scores", "ids", "message"),
    [
        ([[1.0]], [[0, 1]], r"the same shape \[N, k\]; got \(1, 1\) and \(1, 2\)"),
        ([1.0], [0], r"the same shape \[N, k\]; got \(1,\) and"),
        ([[1.0]], [[0.0]], "ids must be integers; got dtype float64"),
        ([["a"]], [[0]], "scores must be real numbers; got dtype <U1"),
        ([[1.0], [1.0]], [[0], [5]], r"ids must be -1 or in \[0, 5\); got 5 in row 1"),
        ([[1.0]], [[-2]], r"ids must be -1 or in \[0, 5\); got -2 in row 0"),
        ([[1.0], [np.nan]], [[0], [1]], "scores must be finite in float32; got nan in row 1"),
        ([[1e39]], [[0]], "scores must be finite in float32; got inf in row 0"),
        ([[1.0, 2.0]], [[3, 3]], r"ids must not occur twice in a row; got \[3 3\] in row 0"),
    ],
)
def test_refused(tmp_path, scores, ids, message):
    with pytest.raises(ValueError, match=message):
        write_predictions(tmp_path / "best.txt", scores, ids, 5)
    assert not list(tmp_path.iterdir())
    with pytest.raises(ValueError, match="num_labels must be an integer of at least 1"):
        write_predictions(tmp_path / "best.txt", [[1.0]], [[0]], 0)
