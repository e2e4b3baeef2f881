# SPDX-License-Identifier: Apache-2.0
"""The recommender of the next item, on users who go round a circle of items."""

from __future__ import annotations

import json
import re

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfx_largeout as tlo

ITEMS = 30
OPTIONS = {
    "epochs": 1,
    "width": 16,
    "blocks": 1,
    "batch-size": 16,
    "learning-rate": 0.02,
    "k": 8,
    "dropout": 0.1,
}


@pytest.fixture
def example(load_example):
    return load_example("next_item")


def users(number=120):
    """Who had item i has i + 1 next, or i + 2; ids of items are 100, 200, ..."""
    rng = np.random.default_rng(0)
    rows = [np.cumsum(rng.integers(1, 3, rng.integers(3, 9))) for _ in range(number)]
    starts = rng.integers(ITEMS, size=number)
    return [100 * ((start + row) % ITEMS + 1) for start, row in zip(starts, rows, strict=True)]


def write(file, rows):
    lines = (f"{u} {' '.join(map(str, row))}\n" for u, row in enumerate(rows, 1))
    file.write_text("".join(lines))


def run(example, folder, rows, head="exact", **options):
    folder.mkdir(exist_ok=True)
    write(folder / "users.txt", rows)
    chosen = {**OPTIONS, "head": head, "output": folder / "out", **options}
    command = [str(part) for name in chosen for part in (f"--{name}", chosen[name])]
    return example.main([str(folder / "users.txt"), *command])


HEADS = ["exact", "uniform", "log-uniform", "popularity", "in-batch", "midx", "gbce", "tensorflow"]


@pytest.mark.thorough
@pytest.mark.parametrize("head", HEADS)
def test_learns_and_writes_what_it_promises(example, tmp_path, head, capsys):
    names = tmp_path / "names.txt"
    names.write_text("".join(f"{100 * i} item no. {i}\n" for i in range(1, ITEMS)))
    results = run(example, tmp_path, users(), head, epochs=12, candidates=10, names=names, queue=1)
    out = tmp_path / "out"
    assert json.loads((out / "results.json").read_text()) == results
    lines = capsys.readouterr().out.splitlines()
    for part, line in zip(("validation", "test"), lines[-2:], strict=True):
        assert results[part]["HIT@5"] > 0.8
        assert results[part]["NDCG@10"] > 0.4
        assert line.startswith(f"{part}: HIT@5 {results[part]['HIT@5']:.4f} NDCG@5 ")
    assert lines[-3].startswith("user 1: ") and "item no. " in lines[-3]
    assert list(out.rglob("events.out.*"))

    # Served: ids in, and the same from a loaded file; zeros are no items; none at all is answered.
    served = tf.saved_model.load(str(out / "served" / "1")).signatures["serving_default"]
    history = np.array([[100, 200, 400, 0], [0, 100, 200, 400], [0, 0, 0, 0]])
    answer = served(inputs=tf.constant(history))
    np.testing.assert_array_equal(answer["ids"][0], answer["ids"][1])
    assert np.isfinite(answer["scores"]).all()
    assert set(answer["names"][0, :2].numpy()) & {b"item no. 5", b"item no. 6"}
    had = {b"item no. 1", b"item no. 2", b"item no. 4", b"no item"}
    assert not had & set(answer["names"][0].numpy())
    loaded = tlo.top_k_model(keras.models.load_model(out / "model.keras"), 8)
    scores, ids = loaded.predict(history, verbose=0)
    np.testing.assert_array_equal(ids, answer["ids"])
    np.testing.assert_allclose(scores, answer["scores"], rtol=1e-4)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"found OOV values \[7\]"):
        served(inputs=tf.constant([[100, 7]], tf.int64))


@pytest.mark.thorough
def test_the_test_items_are_not_looked_at_before_the_end(example, tmp_path):
    """With other ones all is the same but the test."""
    rows = users()
    others = [np.append(row[:-1], rows[u - 1][-1]) for u, row in enumerate(rows)]
    found = [run(example, tmp_path / name, r) for name, r in (("a", rows), ("b", others))]
    assert found[0]["validation"] == found[1]["validation"]
    assert found[0]["epoch"] == found[1]["epoch"]
    assert found[0]["test"] != found[1]["test"]


def test_histories_of_all_kinds_are_ranked_and_served(example, tmp_path, monkeypatch):
    """Ids with gaps, repeated items, items of the test alone, users of few; the other format."""
    asked = []
    held_out, fit = example.data.Histories.held_out, keras.Model.fit
    monkeypatch.setattr(
        example.data.Histories,
        "held_out",
        lambda self, part: asked.append(part) or held_out(self, part),
    )
    monkeypatch.setattr(
        keras.Model, "fit", lambda self, *a, **k: [fit(self, *a, **k), asked.append("end")][0]
    )
    far = 10**12
    rows = [[7, far, 7, 9], [far, 7, 9, 9], [9, far, 7, 40], [7, 9], [far], *4 * [[7, far, 9, 50]]]
    lines = [f"{user}\t{item}" for user, row in enumerate(rows, 11) for item in row]
    (tmp_path / "d.txt").write_bytes("\r\n\r\n".join(["", *lines]).encode())
    options = {**OPTIONS, "k": 5, "head": "exact", "output": tmp_path / "out", "user": 15}
    command = [str(part) for name in options for part in (f"--{name}", options[name])]
    results = example.main([str(tmp_path / "d.txt"), *command])
    assert asked == ["validation", "end", "validation", "test"]  # test items only after `fit`
    # Who is to be told of an item that they had: never found. All others are, of five items.
    assert results["test"]["HIT@5"] == pytest.approx(6 / 7)
    assert results["validation"]["HIT@5"] == pytest.approx(6 / 7)
    served = tf.saved_model.load(str(tmp_path / "out" / "served" / "1"))
    served = served.signatures["serving_default"]
    expected = {7: [9, 40, 50, far], 40: [7, 9, 50, far], 0: [7, 9, 40, 50, far]}
    for item, others in expected.items():
        names = served(inputs=tf.constant([[item]], tf.int64))["names"][0].numpy()
        assert sorted(int(name) for name in names if name) == others
    nothing = served(inputs=tf.zeros([1, 0], tf.int64))["ids"]
    of_zeros = served(inputs=tf.zeros([1, 3], tf.int64))["ids"]
    np.testing.assert_array_equal(nothing, of_zeros)


def test_the_latest_is_at_the_last_item(example):
    x = tf.reshape(tf.range(12.0), [3, 4, 1])
    items = tf.constant([[0, 3, 4, 5], [0, 6, 7, 0], [0, 0, 0, 0]], tf.int64)
    np.testing.assert_array_equal(example.Latest()(x, items)[:, 0], [3, 6, 8])


def test_every_item_is_learned_once_from_those_before_it(example):
    class Histories:
        train = (np.arange(1, 12), np.array([1]), np.arange(20, 25))

    pairs = example.sequences(Histories, length=4)
    assert [(x.tolist(), y.tolist()) for x, y in pairs] == [
        ([0, 7, 8, 9, 10], [-1, 8, 9, 10, 11]),
        ([0, 3, 4, 5, 6], [-1, 4, 5, 6, 7]),
        ([0, 1, 2], [1, 2, 3]),
        ([0], [1]),
        ([0, 20, 21, 22, 23], [20, 21, 22, 23, 24]),
    ]


@pytest.mark.parametrize(
    ("actions", "items", "steps", "expected"),
    [
        (150_000, 12_000, 350, ("exact", 1000, 20, 5, False)),
        (10_000, 1_000, 60, ("exact", 1000, 50, 12, False)),
        (1_000_000, 50_000, 1_000, ("log-uniform", 1000, 20, 5, False)),
        (10**7, 10**6, 10**5, ("log-uniform", 1000, 3, 2, True)),
    ],
)
def test_defaults_are_those_for_the_size_of_the_data(example, actions, items, steps, expected):
    class Histories:
        counts = np.append(actions, np.zeros(items - 1, int))
        num_classes = items

    arguments = example.parse(["none"])
    example.choose(arguments, Histories, steps)
    names = ("head", "candidates", "epochs", "patience", "bias")
    assert tuple(getattr(arguments, name) for name in names) == expected
    given = example.parse(["none", "--head=midx", "--epochs=2", "--patience=1", "--bias"])
    example.choose(given, Histories, steps)
    assert tuple(getattr(given, name) for name in names) == ("midx", 100, 2, 1, True)
    for head in HEADS:
        given = example.parse(["none", f"--head={head}"])
        example.choose(given, Histories, steps)
        assert given.bias == (head in ("gbce", "in-batch") or items > 100_000)


def test_options_without_effect_are_reported(example, capsys):
    class Histories:
        counts, num_classes = np.array([0, 9, 9]), 3

    for options, expected in [
        (["--head=exact", "--queue=2"], "--queue has no effect on --head exact, but on --head in-"),
        (["--head=in-batch", "--candidates=9"], "--candidates has no effect on --head in-batch, "),
        (["--calibration=1"], "--calibration has no effect on --head exact, but on --head gbce"),
        (["--head=gbce", "--calibration=1", "--candidates=9"], ""),
    ]:
        example.choose(example.parse(["none", *options]), Histories, 10)
        said = capsys.readouterr().err
        assert said.startswith(expected) and bool(said) == bool(expected)


@pytest.mark.thorough
def test_in_batch_candidates_leave_what_is_never_in_training(example, tmp_path):
    rows = [
        np.append(row[:-1], 100 * (1000 + u)) if u % 4 else row for u, row in enumerate(users())
    ]
    results = run(example, tmp_path, rows, "in-batch", epochs=12)
    unknown = sum(u % 4 > 0 for u in range(len(rows)))
    assert results["test"]["coverage@10"] <= ITEMS / (ITEMS + unknown)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--calibration=2", r"must be in \[0, 1\]; got 2"),
        ("--calibration=nan", "got nan"),
        ("--epochs=0", "must be at least 1; got 0"),
        ("--patience=0", "must be at least 1; got 0"),
        ("--candidates=0", "must be at least 1; got 0"),
        ("--batch-size=0", "must be at least 1; got 0"),
        ("--attention-heads=0", "must be at least 1; got 0"),
        ("--attention-heads=129", "must be at most --width, 128; got 129"),
        ("--blocks=-1", "must be at least 0; got -1"),
    ],
)
def test_options_out_of_range_are_refused(example, capsys, option, message):
    with pytest.raises(SystemExit):
        example.parse(["none", option])
    name = option.partition("=")[0]
    assert re.search(f"{name}.*{message}", capsys.readouterr().err)
