# SPDX-License-Identifier: Apache-2.0
"""The estimate of memory: weights and state as they come to be, steps against real processes."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from child import run_child
from conformance.heads_table import HEADS
from variants import cases_of

import tfx_largeout as tlo
from tfx_largeout.memory import StepSize, sum_of, text_of_bytes

CLASSES, WIDTH, BATCH = 3001, 16, 32
ROWS = {row.name: row for row in HEADS}
MILLIONS = 10_000_000
every_row = cases_of("name", list(ROWS))


def bytes_of(variables):
    """The bytes of all variables except scalars."""
    sizes = [np.prod(v.shape) * tf.as_dtype(v.dtype).size for v in variables if len(v.shape)]
    return int(sum(sizes))


def made(row, width=WIDTH):
    return row.make_head(CLASSES, **({"of_width": width} if row.is_tied else {}))


@pytest.mark.all_cases
@every_row
def test_weights_are_known_before_they_are_made(name):
    head = made(ROWS[name])
    weights = head.weights_of(WIDTH)
    assert not head.built
    head.build((None, WIDTH))
    index = getattr(head, "index", None)
    of_index = [] if index is None else index.variables
    own = [v for v in head.variables if not any(v is each for each in of_index)]
    if ROWS[name].is_tied:
        own = [head.kernel, *own]
    assert sum_of(weights, "weights") == bytes_of({v.path: v for v in own}.values())
    state = head.optimizer.variables if hasattr(head, "optimizer") else []
    assert sum_of(weights, "optimizer") == bytes_of(state)
    tree = 8 * CLASSES if "hierarchical" in name else 0
    functions = [v for v in of_index if v.name in ("planes", "elements")]  # hash functions
    of_index = bytes_of(of_index) - bytes_of(functions)
    assert sum_of(weights, "index") == pytest.approx(of_index + tree, abs=100)  # schedules, too


@pytest.mark.all_cases
@every_row
def test_a_larger_step_takes_more(name):
    def memory(examples=BATCH, labels=2, width=WIDTH):
        return made(ROWS[name], width).memory_of_step(width, StepSize(examples, labels))

    small, longer, wider = memory(), memory(examples=3 * BATCH), memory(width=2 * WIDTH)
    for larger in (longer, wider, memory(labels=3)):
        assert all(many >= few for many, few in zip(larger, small, strict=True))
    assert sum(longer) > sum(small) < sum(wider)


def sampled(classes=MILLIONS, **kw):
    return tlo.heads.SampledHead(
        classes, tlo.samplers.LogUniform(20), tlo.optimizers.RowAdam(1e-3), **kw
    )


def test_ten_million_classes_are_answered_and_not_made():
    head = sampled(dtype="bfloat16")
    estimate = tlo.estimate_memory(head, 128, hidden_size=256)
    assert not head.built and not head.variables
    numbers = MILLIONS * 257
    assert estimate.weights == 2 * numbers
    assert estimate.optimizer == 8 * numbers + 2 * 4 * MILLIONS  # m, v, and the age of each row
    assert estimate.kept < estimate.peak < 1.05 * estimate.kept
    four = tlo.estimate_memory(head, 128, workers=4, hidden_size=256)
    assert (four.weights, four.optimizer) == (estimate.weights // 4, estimate.optimizer // 4)
    head.dtype_policy = "float32"  # of a head that is not built
    assert tlo.estimate_memory(head, 128, hidden_size=256).weights == 4 * numbers


def test_a_table_is_printed():
    lines = str(tlo.estimate_memory(sampled(1_000_000), 128, hidden_size=100)).splitlines()
    assert lines[0].split()[:3] == ["weights", "optimizer", "index"]
    assert lines[1].startswith("sampled_head")
    assert "404 MB" in lines[1] and "816 MB" in lines[1]
    assert lines[-1].startswith("peak: 1.3") and lines[-1].endswith("available")


def test_a_model_is_the_sum_of_its_layers():
    inputs = keras.Input([5, 8])
    hidden = keras.layers.Dense(WIDTH)(inputs)
    heads = [sampled(500), tlo.heads.DenseHead(400)]
    model = keras.Model(inputs, [head(hidden) for head in heads])
    model.compile("adam", [tlo.losses.ComplementarySum(), tlo.losses.SoftmaxCrossentropy()])
    estimate = tlo.estimate_memory(model, BATCH)
    model.optimizer.build(model.trainable_variables)
    assert estimate.weights == bytes_of(model.variables)
    assert estimate.optimizer == bytes_of(
        [*model.optimizer.variables, *heads[0].optimizer.variables]
    )
    assert estimate.weights == sum(layer.weights for layer in estimate.layers)
    dense = next(layer for layer in estimate.layers if "DenseHead" in layer.name)
    step = StepSize(5 * BATCH)  # each place of a sequence is an example
    assert dense.activations == heads[1].memory_of_step(WIDTH, step).activations
    assert dense.gradients == 4 * 400 * (WIDTH + 1)
    longer = tlo.estimate_memory(model, BATCH, length=50)
    assert longer.activations > 5 * estimate.activations


def test_a_table_that_two_layers_share_counts_once():
    table = tlo.layers.RowEmbedding(CLASSES, WIDTH)
    inputs = keras.Input([4], dtype="int32")
    hidden = keras.layers.GlobalAveragePooling1D()(table(inputs))
    head = tlo.heads.TiedSampledHead(table, tlo.samplers.LogUniform(20))
    assert head.num_named(StepSize(BATCH, labels=2)) == 2 * BATCH + 20
    model = keras.Model(inputs, head(hidden))
    for optimizer, gradients in (("row", 0), ("adam", 4 * CLASSES * (WIDTH + 1))):
        model.compile(
            tlo.optimizers.RowAdam(1e-3) if optimizer == "row" else optimizer,
            tlo.losses.ComplementarySum(),
        )
        estimate = tlo.estimate_memory(model, BATCH)
        assert estimate.weights == 4 * CLASSES * (WIDTH + 1)
        assert estimate.gradients == gradients


@pytest.mark.all_cases
@pytest.mark.parametrize("optimizer", [tlo.optimizers.RowAdam, keras.optimizers.SGD])
def test_a_tied_exact_head_with_selected_gradients_makes_nothing_of_the_size_of_the_table(
    optimizer,
):
    table, selected = tlo.layers.RowEmbedding(1_000_000, WIDTH), 4
    head = tlo.heads.TiedExactSoftmaxHead(table, num_selected=selected)
    estimate = tlo.estimate_memory(head, BATCH, optimizer=optimizer())
    assert estimate.gradients == 0
    assert estimate.activations < 64 * BATCH * (1 + selected) * WIDTH
    dense = tlo.heads.TiedExactSoftmaxHead(table, backward="all")
    of_all = tlo.estimate_memory(dense, BATCH, optimizer=optimizer())
    assert of_all.gradients > estimate.weights / 2
    assert of_all.activations > 2 * 4 * 1_000_000 * WIDTH


@pytest.mark.parametrize(
    "optimizer",
    [
        tlo.optimizers.FusedAdam(),
        keras.optimizers.SGD(momentum=0.9),
        keras.optimizers.SGD(clipnorm=1.0),
    ],
)
def test_a_dense_step_with_a_table_takes_its_gradient_and_a_copy(optimizer):
    table = tlo.layers.RowEmbedding(1_000_000, WIDTH)
    head = tlo.heads.TiedSampledHead(table, tlo.samplers.LogUniform(20), use_bias=False)
    estimate = tlo.estimate_memory(head, BATCH, optimizer=optimizer)
    assert estimate.gradients == estimate.weights
    assert estimate.weights <= estimate.activations < 1.01 * estimate.weights


def test_a_dense_head_has_one_more_gradient_of_w_or_of_logits():
    kernel, logits = 4 * MILLIONS * WIDTH, 4 * MILLIONS
    for dtype, copies in (("float32", 0), ("bfloat16", kernel)):
        head = tlo.heads.DenseHead(MILLIONS, use_bias=False, dtype=dtype)
        for examples in (1, WIDTH, 3 * WIDTH):
            estimate = tlo.estimate_memory(head, examples, hidden_size=WIDTH, optimizer="sgd")
            more = max(kernel, examples * logits)
            assert estimate.gradients == estimate.weights
            assert estimate.activations == copies + examples * logits + more


def test_initial_values_are_gone_when_there_are_gradients():
    model = keras.Sequential([keras.Input([8]), keras.layers.Dense(100_000)])
    model.compile("sgd")
    estimate = tlo.estimate_memory(model, 1)
    assert estimate.gradients + estimate.building == 2 * 4 * 8 * 100_000


def test_the_index_of_top_k_is_an_index():
    head = tlo.heads.DenseHead(CLASSES)
    model = keras.Sequential([keras.Input([WIDTH]), head])
    index = tlo.indexes.RowBounds()
    index.rebuild(head.kernel)
    best = tlo.top_k_model(model, 5, index=index)
    estimate = tlo.estimate_memory(best, BATCH)
    assert estimate.index == bytes_of(index.variables)
    assert estimate.weights == bytes_of(head.variables)


def test_other_layers_are_known_by_their_variables():
    model = keras.Sequential([keras.Input([8]), keras.layers.Dense(100), keras.layers.PReLU()])
    model.compile("adam")
    estimate = tlo.estimate_memory(model, BATCH)
    assert estimate.weights == estimate.gradients == 4 * (9 * 100 + 100)
    assert estimate.optimizer == 2 * estimate.weights

    class Unknown(tlo.heads.DenseHead):
        weights_of = tlo.heads.Head.weights_of

    with pytest.raises(ValueError, match="must be built"):
        tlo.estimate_memory(Unknown(CLASSES), BATCH, hidden_size=WIDTH)


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"batch_size": 0}, ValueError, "batch_size must be"),
        ({"workers": 0}, ValueError, "workers must be"),
        ({"labels": 1.5}, ValueError, "labels must be"),
        ({"length": 0}, ValueError, "length must be"),
        ({"hidden_size": None}, ValueError, "hidden_size must be given"),
        ({"model_or_head": "a head"}, TypeError, "model_or_head must be"),
        ({"model_or_head": keras.Sequential()}, ValueError, "model_or_head must be built"),
        ({"model_or_head": keras.layers.Dense(3)}, ValueError, "model_or_head must be built"),
        ({"model_or_head": sampled(3), "workers": 4}, ValueError, "workers must be at most the 3"),
        (
            {
                "model_or_head": tlo.heads.HierarchicalSoftmaxHead(9, tlo.optimizers.RowSGD()),
                "workers": 2,
            },
            ValueError,
            "workers must be 1 for a HierarchicalSoftmaxHead",
        ),
    ],
    ids=lambda value: next(iter(value), "") if isinstance(value, dict) else "",
)
def test_what_is_wrong_is_named(arguments, error, words):
    given = {"model_or_head": sampled(), "batch_size": 8, "hidden_size": 4, **arguments}
    with pytest.raises(error, match=words):
        tlo.estimate_memory(**given)


def test_bytes_as_text():
    numbers = [0, 999, 1000, 20_400, 1_500_000, 2_345_678_901, 12_345_678_901_234]
    texts = ["0 B", "999 B", "1 kB", "20.4 kB", "1.5 MB", "2.35 GB", "1.23e+04 GB"]
    assert list(map(text_of_bytes, numbers)) == texts


MEASURED = ["sampled", "sampled, own, B = 4096", "exact", "factored", "dense, Adam", "tied sampled"]


@pytest.mark.thorough
@pytest.mark.parametrize("case", MEASURED)
def test_a_process_takes_what_the_estimate_says(tmp_path, case):
    script = Path(__file__).parents[2] / "benchmarks" / "memory.py"
    if not script.exists() or sys.platform != "linux":
        pytest.skip("needs the benchmarks, and /proc")
    child = run_child(tmp_path, str(script), "--child", case)
    assert child.returncode == 0, child.stderr[-2000:]
    row = json.loads(child.stdout.splitlines()[-1])
    assert 0.9 < float(row["ratio"]) < 1.1, row
