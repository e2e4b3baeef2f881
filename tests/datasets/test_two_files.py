# SPDX-License-Identifier: Apache-2.0
"""Features and labels in two files, as text or as a CSR matrix in an .npz file."""

from __future__ import annotations

import bz2
import gzip
import lzma
import zipfile
from pathlib import Path

import numpy as np
import pytest
from datasets.test_xc_format import as_read, rows_of
from oracles import xc_files

from tfx_largeout.datasets import csr_format, line_blocks, read_xc, xc_format

X = b"3 10\n4:0.5 3:1\n\n9:-1e0 \n"
Y = b"3 8\n7:1.0\n1:1 2:1.00\n\n"
ROWS = [([7], {3: 1.0, 4: 0.5}), ([1, 2], {}), ([], {9: -1.0})]


def write(folder: Path, x: bytes = X, y: bytes = Y) -> tuple[Path, Path]:
    paths = folder / "trn_X_Xf.txt", folder / "trn_X_Y.txt"
    for path, content in zip(paths, (x, y), strict=True):
        path.write_bytes(content)
    return paths


def arrays_of(rows: list[dict[int, float]], width: int) -> dict[str, np.ndarray]:
    """The members of an .npz file with these rows, their ids in the order of the dicts."""
    return {
        "format": np.array(b"csr"),
        "shape": np.array([len(rows), width]),
        "indptr": np.cumsum([0, *map(len, rows)]).astype(np.int32),
        "indices": np.array([i for row in rows for i in row], np.int32),
        "data": np.array([v for row in rows for v in row.values()], np.float64),
    }


@pytest.mark.parametrize("compress", [bytes, gzip.compress, lzma.compress, bz2.compress])
@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_reads_two_text_files(tmp_path, monkeypatch, compress, end):
    mark = b"\xef\xbb\xbf" if end == b"\r\n" else b""
    paths = write(tmp_path, *(compress(mark + part.replace(b"\n", end)) for part in (X, Y)))
    examples = read_xc(*paths)
    assert rows_of(examples) == ROWS
    assert (examples.num_features, examples.num_labels) == (10, 8)
    monkeypatch.setattr(xc_format, "parse_fast", lambda block, grammar: None)
    assert rows_of(read_xc(*paths)) == ROWS


@pytest.mark.parametrize("kinds", ["text text", "npz text", "text npz", "npz npz"])
@pytest.mark.parametrize("block", [1, 100, 1 << 20])
def test_random_files(tmp_path, monkeypatch, kinds, block):
    monkeypatch.setattr(line_blocks, "_BLOCK_BYTES", block)
    monkeypatch.setattr(csr_format, "_BLOCK_ENTRIES", block)
    for seed in range(5):
        rng = np.random.default_rng(seed)
        num_rows, width, classes = map(int, rng.integers([0, 1, 1], [40, 100_000, 2_000_000]))
        rows = xc_files.draw(rng, num_rows, width, classes)
        sides = [features for _, features in rows], [dict.fromkeys(y, 1.0) for y, _ in rows]
        paths = []
        for kind, side, number in zip(kinds.split(), sides, (width, classes), strict=True):
            path = tmp_path / f"{number}.{kind}"
            if kind == "npz":
                np.savez_compressed(path, **arrays_of(side, number))
            else:
                lines = [" ".join(f"{i}:{v!r}" for i, v in row.items()) for row in side]
                path.write_text("\n".join([f"{num_rows} {number}", *lines]) + "\n")
            paths.append(path)
        expected = [(sorted(labels), features) for labels, features in as_read(rows)]
        examples = read_xc(*paths)
        assert rows_of(examples) == expected
        assert (examples.num_features, examples.num_labels) == (width, classes)


def test_reads_what_scipy_writes(tmp_path):
    sparse = pytest.importorskip("scipy.sparse")
    x = sparse.random(50, 30, 0.2, "csr", random_state=0)
    y = sparse.random(50, 20, 0.1, "csr", random_state=1).astype(bool)
    for compressed in (True, False):
        sparse.save_npz(tmp_path / "x.npz", x, compressed)
        sparse.save_npz(tmp_path / "y.npz", sparse.csr_array(y), compressed)
        features, labels = read_xc(tmp_path / "x.npz", tmp_path / "y.npz").to_csr()
        np.testing.assert_array_equal(features.toarray(), x.astype(np.float32).toarray())
        np.testing.assert_array_equal(labels.toarray(), y.toarray())


def test_values_of_labels(tmp_path):
    paths = write(tmp_path, b"2 4\n1:1\n2:1\n", b"2 9\n5:1 3:0\n8:0.0\n")
    assert rows_of(read_xc(*paths)) == [([5], {1: 1.0}), ([], {2: 1.0})]
    paths = write(tmp_path, b"2 4\n1:1\n2:1\n", b"2 9\n5:0.25 3:-1 4:0\n8:7\n")
    found = rows_of(read_xc(*paths, label_values="positive"))
    assert found == [([5], {1: 1.0}), ([8], {2: 1.0})]
    with pytest.raises(ValueError, match=r"Y\.txt:2: the value of label 5 must be 1, .*got '0.25'"):
        read_xc(*paths)
    with pytest.raises(ValueError, match="label_values must be one of 'one', 'positive'; got 1"):
        read_xc(*paths, label_values=1)


def test_rows_without_labels(tmp_path):
    paths = write(tmp_path, b"3 4\n1:1\n2:1\n3:1\n", b"3 9\n5:1\n\n7:1\n")
    dropped = read_xc(*paths, rows_without_labels="drop")
    assert rows_of(dropped) == [([5], {1: 1.0}), ([7], {3: 1.0})]
    with pytest.raises(ValueError, match=r"Y\.txt:3: an example must have a label"):
        read_xc(*paths, rows_without_labels="error")


REFUSED = {
    "other numbers of rows": (X, b"2 8\n7:1\n1:1\n", r"Y\.txt:1: .* examples as .*3 in .*; got 2"),
    "one file of two": (b"3 10 8\n4:1\n\n\n", Y, r"Xf\.txt:1: .* two integers.*read_xc\(path\)"),
    "no header": (b"4:1\n", Y, r"Xf\.txt:1: the header must be two integers"),
    "empty": (X, b"", r"Y\.txt:1: the header must be two integers .* examples and labels; got ''"),
    "fewer rows": (X, b"3 8\n7:1\n1:1\n", r"Y\.txt:3: the header promises 3 examples; got 2"),
    "more rows": (X + b"1:1\n", Y, r"Xf\.txt:5: the header promises 3 examples; got more: '1:1'"),
    "feature too great": (b"1 10\n10:1\n", b"1 8\n\n", r"Xf\.txt:2: a feature must .* \[0, 10\)"),
    "label too great": (X, b"3 8\n7:1\n8:1\n\n", r"Y\.txt:3: a label must .* \[0, 8\); got '8'"),
    "negative label": (X, b"3 8\n-7:1\n\n\n", r"Y\.txt:2: a label must be an integer"),
    "label of 1.0": (X, b"3 8\n1.0:1\n\n\n", r"Y\.txt:2: a label must be an integer"),
    "label without a value": (X, b"3 8\n7\n\n\n", r"Y\.txt:2: a label must be written id:value"),
    "labels with commas": (X, b"3 8\n7,5\n\n\n", r"Y\.txt:2: a label must be written id:value"),
    "label twice": (X, b"3 8\n7:1 7:1\n\n\n", r"Y\.txt:2: a label must not occur twice .* got 7"),
    "feature twice": (b"3 9\n\n4:1 4:2\n\n", Y, r"Xf\.txt:3: a feature must not occur twice"),
    "nan": (X, b"3 8\n7:nan\n\n\n", r"Y\.txt:2: the value of label 7 must be 1.* got 'nan'"),
    "inf": (b"3 9\n4:inf\n\n\n", Y, r"Xf\.txt:2: the value of feature 4 must be a finite"),
    "cut short": (X, gzip.compress(Y)[:-9], r"Y\.txt:1: a compressed file must be whole"),
    "too many labels": (
        X,
        b"3 2147483648\n\n\n\n",
        r"Y\.txt:1: the number of labels must be at mo",
    ),
}


@pytest.mark.parametrize("name", list(REFUSED))
@pytest.mark.parametrize("is_fast", [True, False])
def test_refused(tmp_path, monkeypatch, name, is_fast):
    x, y, message = REFUSED[name]
    if not is_fast:
        monkeypatch.setattr(xc_format, "parse_fast", lambda block, grammar: None)
    with pytest.raises(ValueError, match=message):
        read_xc(*write(tmp_path, x, y))


def test_one_file_that_is_half_of_two(tmp_path):
    x, _ = write(tmp_path)
    with pytest.raises(ValueError, match=r":1: .* three integers .*two: read_xc\(features, labels"):
        read_xc(x)
    np.savez(tmp_path / "x.npz", **arrays_of([{}], 3))
    with pytest.raises(ValueError, match=r"x\.npz: .* alone: .*; got no file of labels"):
        read_xc(tmp_path / "x.npz")
    with pytest.raises(FileNotFoundError, match="nothing"):
        read_xc(x, tmp_path / "nothing.npz")


def changed(**members: np.ndarray | None) -> dict[str, np.ndarray]:
    arrays = {**arrays_of([{2: 1.0, 5: 2.0}, {}, {0: 3.0}], 8), **members}
    return {name: array for name, array in arrays.items() if array is not None}


REFUSED_NPZ = {
    "an array": ({"x": np.zeros(3)}, "must hold a CSR matrix.*no format.npy in it, but x.npy"),
    "CSC": (changed(format=np.array(b"csc")), r"format 'csc': matrix.tocsr\(\) makes one"),
    "COO": (changed(format=np.array(b"coo"), indptr=None), r"format 'coo': matrix.tocsr\(\)"),
    "no data": (changed(data=None), "no data.npy in it"),
    "objects": (changed(data=np.array([1, "a", 2], object)), "data of shape .* dtype object"),
    "text": (changed(data=np.array(["1", "2", "3"])), "data of shape .* dtype <U1"),
    "complex": (changed(data=np.ones(3, complex)), "dtype complex128"),
    "ids of floats": (changed(indices=np.array([2.0, 5, 0])), "indices of .* dtype float64"),
    "a matrix of ids": (changed(indices=np.zeros([3, 1], int)), r"indices of shape \(3, 1\)"),
    "three axes": (changed(shape=np.array([3, 8, 1])), r"the shape \[3, 8, 1\]"),
    "more rows than said": (changed(shape=np.array([2, 8])), "one more, 3; got 4"),
    "fewer rows than said": (changed(shape=np.array([9, 8])), "one more, 10; got 4"),
    "splits that fall": (changed(indptr=np.array([0, 3, 2, 3])), "must not fall; got .* row 1,"),
    "splits that end early": (changed(indptr=np.array([0, 1, 1, 2])), "run from 0 to 3; got 0 to"),
    "fewer values": (changed(data=np.ones(2)), "indices and data must .* length; got 3 and 2"),
    "id too great": (changed(indices=np.array([2, 8, 0])), r"row 0, .*in \[0, 8\); got 8"),
    "negative id": (changed(indices=np.array([2, 5, -1])), "row 2, from 0: a feature .*; got -1"),
    "id twice": (changed(indices=np.array([5, 5, 0])), "row 0, .* must not occur twice.* got 5"),
    "nan": (changed(data=np.array([1, 1, np.nan])), "row 2, .* value of feature 0 .*; got nan"),
    "beyond float32": (changed(data=np.array([1, 1e39, 1])), r"row 0, .*feature 5 .*got 1e\+39"),
    "too wide": (changed(shape=np.array([3, 2**31])), "at most 2147483647 columns; got 2147483648"),
}


@pytest.mark.parametrize("name", list(REFUSED_NPZ))
def test_refused_npz(tmp_path, name):
    members, message = REFUSED_NPZ[name]
    path, labels = tmp_path / "x.npz", tmp_path / "y.txt"
    np.savez_compressed(path, **members)
    labels.write_text("3 2\n\n\n\n")
    with pytest.raises(ValueError, match=rf"x\.npz: .*{message}"):
        read_xc(path, labels)


def test_a_damaged_npz(tmp_path):
    path, labels = tmp_path / "x.npz", tmp_path / "y.txt"
    np.savez_compressed(path, **arrays_of([{i: 1.0 for i in range(5000)}], 5000))
    labels.write_text("1 2\n\n")
    content = path.read_bytes()
    with zipfile.ZipFile(path) as archive:
        place = archive.getinfo("data.npy").header_offset + 60
    for damaged in (b"", content[:-200], content[:place] + b"\xff" + content[place + 1 :]):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"x\.npz: an \.npz file must be whole"):
            read_xc(path, labels)


@pytest.mark.parametrize("kind", ["text", "npz"])
def test_features_without_labels(tmp_path, kind):
    path, _ = write(tmp_path)
    if kind == "npz":
        path = tmp_path / "x.npz"
        np.savez(path, **arrays_of([features for _, features in ROWS], 10))
    for cache in (None, tmp_path / "cache"):
        examples = read_xc(path, num_labels=8, cache=cache)
        assert rows_of(examples) == [([], features) for _, features in ROWS]
        assert (examples.num_features, examples.num_labels) == (10, 8)
    for options in ({"labels": path}, {"rows_without_labels": "drop"}):
        with pytest.raises(ValueError, match=r"num_labels must be None with a file of labels, .*8"):
            read_xc(path, num_labels=8, **options)
    with pytest.raises(ValueError, match="num_labels must be an integer of at least 0 and at most"):
        read_xc(path, num_labels=-1)


def test_progress_of_both(tmp_path, capsys):
    reports = []
    paths = write(tmp_path)
    read_xc(*paths, progress=lambda done, total: reports.append((done, total)))
    assert reports == [(3, 3), (3, 3)]
    read_xc(*paths, progress=True)
    assert capsys.readouterr().err == (
        "\rreading trn_X_Y.txt: 3 of 3 examples\n\rreading trn_X_Xf.txt: 3 of 3 examples\n"
    )
