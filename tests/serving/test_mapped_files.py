# SPDX-License-Identifier: Apache-2.0
"""Exported models whose tables are mapped: the same answers, no memory, and no broken file."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest
import tensorflow as tf
from child import run_child
from conformance.heads_table import HEADS
from serving.models import CLASSES, K, X, clustered_model, dense_model, model_of, text_model
from variants import thorough

import tfx_largeout as tlo
from tfx_largeout.serving import mapped_files


@pytest.fixture
def small_files(monkeypatch):
    """Tables of any size get separate files."""
    monkeypatch.setattr(mapped_files, "_LEAST_BYTES", 1)


def same_answers(folder, **inputs):
    """Compares the answers of both loaders' models; returns the mapped model."""
    plain, mapped = tf.saved_model.load(str(folder)), tlo.serving.load(folder)
    assert plain.signatures.keys() == mapped.signatures.keys()
    for name, signature in plain.signatures.items():
        more = {"num_probed": tf.constant(2)} if name == "with_num_probed" else {}
        for _ in range(2):
            one, two = signature(**inputs, **more), mapped.signatures[name](**inputs, **more)
            assert one.keys() == two.keys()
            for key, values in one.items():
                np.testing.assert_array_equal(values, two[key])
    return mapped


OPTIONS = [
    {},
    *thorough(
        {"rows": "bfloat16"},
        {"rows": "int8", "activation": "softmax"},
        {"rows": "int8", "rescore": True},
        {"index": "ivf"},
    ),
    {"index": "ivf", "rows": "bfloat16", "rescore": True},
]


@pytest.mark.all_cases
@pytest.mark.parametrize("options", OPTIONS)
def test_answers_are_those_of_the_plain_loader(options, small_files, tmp_path):
    tlo.export(clustered_model(), tmp_path / "1", K, **options)
    same_answers(tmp_path / "1", inputs=tf.constant(X))
    files = json.loads((tmp_path / "1" / "assets.extra" / "mapped.json").read_text())["files"]
    assert len(files) >= 2  # W and b, at least


@pytest.mark.parametrize("name", ["factored", "hierarchical_two_level", "sampled"])
def test_other_heads(name, small_files, tmp_path):
    row = next(row for row in HEADS if row.name.startswith(name))
    tlo.export(model_of(row.make_head(CLASSES)), tmp_path / "1", K)
    same_answers(tmp_path / "1", inputs=tf.constant(X))


def test_a_hash_index(small_files, tmp_path):
    model = clustered_model()
    index = tlo.indexes.HashIndex(tlo.indexes.SimHash(), 4, 8)
    index.rebuild(model.layers[-1].kernel, model.layers[-1].bias)
    tlo.export(model, tmp_path / "1", K, index=index)
    same_answers(tmp_path / "1", inputs=tf.constant(X))


def test_names_and_words(small_files, tmp_path):
    tlo.export(text_model(), tmp_path / "1", K, names=[f"c {i}" for i in range(CLASSES)])
    same_answers(tmp_path / "1", inputs=tf.constant(["one two", "three", ""]))


def test_small_tables_have_no_files_of_their_own(tmp_path):
    tlo.export(dense_model(), tmp_path / "1", K)
    assert len(list((tmp_path / "1" / "variables").iterdir())) == 2
    same_answers(tmp_path / "1", inputs=tf.constant(X))


def test_the_model_may_go_on_training(small_files, tmp_path):
    """Rows that are kept as they are share memory with W until it changes."""
    row = next(row for row in HEADS if row.name.startswith("sampled"))
    model = model_of(row.make_head(CLASSES))
    model.compile(row.make_optimizer(), row.make_loss())
    tlo.export(model, tmp_path / "1", K, index="ivf", num_lists=1)
    before = tlo.serving.load(tmp_path / "1").signatures["serving_default"](inputs=tf.constant(X))
    model.fit(X, np.arange(len(X)), verbose=0)
    after = tlo.serving.load(tmp_path / "1").signatures["serving_default"](inputs=tf.constant(X))
    np.testing.assert_array_equal(before["scores"], after["scores"])


# Errors for damaged files


def table_file(folder):
    files = json.loads((folder / "assets.extra" / "mapped.json").read_text())["files"]
    paths = [folder / "variables" / name for name in files.values()]
    return max(paths, key=lambda path: path.stat().st_size)


@pytest.mark.parametrize("fault", ["cut", "longer", "empty", "missing"])
def test_a_file_of_another_size(fault, small_files, tmp_path):
    tlo.export(clustered_model(), tmp_path / "1", K)
    path = table_file(tmp_path / "1")
    content = path.read_bytes()
    changed = {"cut": content[:-4096], "longer": content + b"x", "empty": b""}
    if fault == "missing":
        path.unlink()
        with pytest.raises(FileNotFoundError, match=path.name):
            tlo.serving.load(tmp_path / "1")
        return
    path.write_bytes(changed[fault])
    message = rf"{path.name} must have {len(content)} bytes, for float32 \[1, 8, 600\]; got "
    with pytest.raises(ValueError, match=message + str(len(changed[fault]))):
        tlo.serving.load(tmp_path / "1")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "no assets.extra/mapped.json"),
        ("{", "JSONDecodeError"),
        ("[]", "TypeError"),
        ('{"files": {"a": "../x"}}', "names of files"),
        ('{"files": {"a": 3}}', "names of files"),
        ('{"files": {"a": "variables.index"}}', "must be of a variable of the model"),
    ],
)
def test_a_damaged_list_of_files(text, message, small_files, tmp_path):
    tlo.export(dense_model(), tmp_path / "1", K)
    path = tmp_path / "1" / "assets.extra" / "mapped.json"
    path.unlink() if text is None else path.write_text(text)
    with pytest.raises(ValueError, match=message):
        tlo.serving.load(tmp_path / "1")


def test_no_folder_or_that_of_another_tool(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        tlo.serving.load(tmp_path / "nowhere")
    tf.saved_model.save(tf.Module(), str(tmp_path / "other"))
    with pytest.raises(ValueError, match=r"must be one that tlo.export wrote; got .*other"):
        tlo.serving.load(tmp_path / "other")


@pytest.mark.parametrize("part", ["saved_model.pb", "variables.index"])
def test_garbage_in_what_tensorflow_reads(part, small_files, tmp_path):
    tlo.export(dense_model(), tmp_path / "1", K)
    (path,) = (tmp_path / "1").rglob(part)
    path.write_bytes(np.random.default_rng(0).bytes(path.stat().st_size))
    with pytest.raises((OSError, ValueError, RuntimeError, tf.errors.OpError)):
        tlo.serving.load(tmp_path / "1")


@pytest.mark.parametrize("part", ["variables.index", "variables.data-00000-of-00001"])
def test_variables_that_are_cut_off(part, tmp_path):
    tlo.export(dense_model(), tmp_path / "1", K)
    (path,) = (tmp_path / "1").rglob(part)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(ValueError, match=r"variables\.\* must be files as tlo.export wrote them"):
        tlo.serving.load(tmp_path / "1")


MEMORY = """
import json, sys
import tensorflow as tf
import tfx_largeout as tlo

def own():  # MiB of memory that no other process shares
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) / 1024

serve, before = None, own()
if sys.argv[2] == "mapped":
    model = tlo.serving.load(sys.argv[1])
else:
    model = tf.saved_model.load(sys.argv[1])
serve = model.signatures["serving_default"]
for _ in range(5):
    serve(inputs=tf.zeros([1, 8]))
print(json.dumps(own() - before))
"""


@pytest.mark.thorough
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("options", [{"rows": "bfloat16"}, {"rows": "int8", "rescore": True}])
def test_memory(options, tmp_path):
    classes, width = 200_000, 128
    tlo.export(dense_model(classes, width), tmp_path / "1", K, **options)
    size = (
        sum(path.stat().st_size for path in (tmp_path / "1").rglob("*") if path.is_file()) / 2**20
    )
    grown = {}
    for how in ("plain", "mapped"):
        child = run_child(tmp_path, "-c", MEMORY, str(tmp_path / "1"), how)
        assert child.returncode == 0, child.stderr[-2000:]
        grown[how] = json.loads(child.stdout.splitlines()[-1])
    assert grown["plain"] > 0.9 * size  # it is in memory
    assert grown["plain"] - grown["mapped"] > 0.9 * size
