# SPDX-License-Identifier: Apache-2.0
"""Random calls of each op that are in order: shapes fit, ids are in range, states are sound."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from fuzz.calls import Call, Variable

from tfx_largeout.indexes import InvertedFile, RowBounds

Rng = np.random.Generator
_BFLOAT16 = tf.bfloat16.as_numpy_dtype


def random_call(op: str, rng: Rng) -> Call:
    """Draws a call of an op of the library, from its registration."""
    return PROBLEMS[op](rng)


def _size(rng: Rng, *, least: int = 0, most: int = 40) -> int:
    """Draws a dimension: small ones and those next to a vector's length are frequent."""
    if rng.random() < 0.6:
        return int(rng.integers(least, min(most, 5) + 1))
    return int(rng.integers(least, most + 1))


def _floats(rng: Rng, *shape: int, dtype: Any = np.float32) -> np.ndarray:
    return rng.normal(size=shape).astype(dtype)


def _integers(rng: Rng, *shape: int) -> np.ndarray:
    """Small whole numbers: the sums of their products are exact, and ties are frequent."""
    return rng.integers(-3, 4, shape).astype(np.float32)


def _ids(rng: Rng, num_classes: int, *shape: int) -> np.ndarray:
    """Draws class ids, with padding among them."""
    if num_classes == 0:
        return np.full(shape, -1, np.int64)
    ids = rng.integers(0, num_classes, shape)
    return np.where(rng.random(shape) < rng.choice([0.0, 0.3]), -1, ids).astype(np.int64)


def _dtype_of_weights(rng: Rng) -> tf.DType:
    return tf.bfloat16 if rng.random() < 0.3 else tf.float32


# Candidates and row updates


def _candidate_logits(rng: Rng) -> Call:
    inputs, attributes = _candidate_problem(rng)
    return Call("TfxCandidateLogits", inputs, attributes)


def _softmax_selection(rng: Rng) -> Call:
    inputs, attributes = _candidate_problem(rng)
    del inputs["candidates"]
    inputs["seed"] = rng.integers(-(2**62), 2**62, 2)
    _shard(rng, inputs, len(inputs["kernel"].values))
    attributes["num_selected"] = int(rng.integers(0, inputs["num_classes"] + 1))
    attributes["products"] = str(rng.choice(["float32", "bfloat16"]))
    return Call("TfxSoftmaxSelection", inputs, attributes)


def _candidate_update(rng: Rng) -> Call:
    inputs, attributes = _candidate_problem(rng)
    method, rule = _add_slots(rng, inputs)
    batch, num_candidates = len(inputs["hidden"]), inputs["candidates"].shape[-1]
    inputs["true_gradient"] = _floats(rng, *inputs["labels"].shape)
    inputs["candidate_gradient"] = _floats(rng, batch, num_candidates)
    inputs["learning_rate"], inputs["rule"] = _learning_rate(rng), rule
    attributes |= {"method": method, "update": bool(rng.random() < 0.8)}
    attributes["gradient"] = bool(rng.random() < 0.8)
    return Call("TfxCandidateUpdate", inputs, attributes)


def _mean_of_rows(rng: Rng) -> Call:
    dtype = _dtype_of_weights(rng)
    shape = [_size(rng, least=1), *(_size(rng) for _ in range(rng.integers(0, 3)))]
    inputs = {"variable": Variable(_floats(rng, *shape, dtype=dtype.as_numpy_dtype))}
    return Call("TfxMeanOfRows", inputs, {"dtype": dtype})


def _softmax_update(rng: Rng) -> Call:
    inputs, attributes = _candidate_problem(rng)
    del inputs["candidates"]
    method, rule = _add_slots(rng, inputs)
    batch = len(inputs["hidden"])
    inputs["logsumexp"] = _floats(rng, batch) + np.float32(rng.uniform(0, 5))
    inputs["target_gradient"] = _floats(rng, *inputs["labels"].shape)
    inputs["logsumexp_gradient"] = np.where(rng.random(batch) < 0.2, 0, _floats(rng, batch))
    inputs["mean_gradient"] = _floats(rng, batch if rng.random() < 0.7 else 0)
    inputs["learning_rate"], inputs["rule"] = _learning_rate(rng), rule
    attributes |= {"method": method, "update": bool(rng.random() < 0.8)}
    attributes["products"] = str(rng.choice(["float32", "bfloat16"]))
    return Call("TfxSoftmaxUpdate", inputs, attributes)


def _add_slots(rng: Rng, inputs: dict[str, Any]) -> tuple[str, np.ndarray]:
    """Draws a rule, and puts its slots after kernel and bias."""
    method, rule = _rule(rng)
    tensors = {name: inputs.pop(name) for name in list(inputs)[2:]}
    inputs["kernel_slots"] = _slots(rng, method, rule, inputs["kernel"].values)
    inputs["bias_slots"] = [
        slot for bias in inputs["bias"] for slot in _slots(rng, method, rule, bias.values)
    ]
    inputs |= tensors
    return method, rule


def _candidate_problem(rng: Rng) -> tuple[dict[str, Any], dict[str, Any]]:
    classes, width = _size(rng, least=1), _size(rng, least=int(rng.random() < 0.9))
    batch, num_labels, num_candidates = _size(rng), _size(rng, most=5), _size(rng)
    dtype = _dtype_of_weights(rng)
    numpy_dtype = dtype.as_numpy_dtype
    shape = (batch, num_candidates) if rng.random() < 0.5 else (num_candidates,)
    inputs = {
        "kernel": Variable(_floats(rng, classes, width, dtype=numpy_dtype)),
        "bias": [Variable(_floats(rng, classes, dtype=numpy_dtype))] * int(rng.integers(0, 2)),
        "hidden": _floats(rng, batch, width),
        "labels": _ids(rng, classes, batch, num_labels),
        "candidates": _ids(rng, classes, *shape),
    }
    return inputs, {"dtype": dtype}


def _row_update(rng: Rng) -> Call:
    classes, dtype = _size(rng), _dtype_of_weights(rng)
    shape = [(classes,), (classes, _size(rng)), (classes, 2, 3)][rng.integers(0, 3)]
    weights = _floats(rng, *shape, dtype=dtype.as_numpy_dtype)
    ids = rng.permutation(classes)[: rng.integers(0, classes + 1)].astype(np.int64)
    method, rule = _rule(rng)
    inputs = {
        "variable": Variable(weights),
        "slots": _slots(rng, method, rule, weights),
        "ids": ids,
        "gradient": _floats(rng, len(ids), *shape[1:]),
        "learning_rate": _learning_rate(rng),
        "rule": rule,
    }
    return Call("TfxRowUpdate", inputs, {"method": method, "dtype": dtype})


def _learning_rate(rng: Rng) -> np.ndarray:
    return np.float32(rng.choice([0.0, 0.01, 0.5]))


def _rule(rng: Rng) -> tuple[str, np.ndarray]:
    """Draws a method and its numbers; no epsilon is so small that rounding errors grow by it."""
    method = str(rng.choice(["sgd", "adagrad", "adam"]))
    numbers = {
        "sgd": [rng.choice([0.0, 0.9]), rng.choice([0.0, 1.0])],
        "adagrad": [0.1],
        "adam": [rng.choice([0.0, 0.9]), rng.choice([0.5, 0.999]), 0.1],
    }[method]
    shared = [rng.choice([0.0, 0.1]), rng.choice([np.inf, 0.5])]
    row_wise = method != "sgd" and rng.random() < 0.3
    options = [0, 1, 0, 0, 0, 0, 0, 0, 1] if row_wise else []
    return method, np.array([*shared, *numbers, *options], np.float64)


def _slots(rng: Rng, method: str, rule: np.ndarray, weights: np.ndarray) -> list[Variable]:
    """Draws the method's slots for each weight."""
    of_rows = weights.shape[:1] if len(rule) > 9 else weights.shape
    some = [
        Variable(rng.uniform(0.1, 1, shape).astype(np.float32))
        for shape in (weights.shape, of_rows)
    ]
    if method == "sgd":
        return some[: int(rule[2] != 0)]
    if method == "adagrad":
        return some[1:]
    return [*some, Variable(rng.integers(0, 50, weights.shape[:1]).astype(np.uint32))]


# The factored layer


def _factored_state(rng: Rng) -> tuple[dict[str, Any], tf.DType]:
    """Draws a state with rows in several slots, and matching arguments."""
    dtype = tf.float32 if rng.random() < 0.5 else tf.float64
    classes, width = _size(rng, least=1), _size(rng, least=1, most=20)
    unit = np.eye(width)
    num_slots = 8
    v, w = rng.normal(size=(classes, width)), rng.normal(size=width) / 10
    u = unit + 0.3 * rng.normal(size=(width, width)) / np.sqrt(width)
    current = int(rng.integers(0, num_slots))
    transitions = unit + 0.2 * rng.normal(size=(num_slots, width, width)) / np.sqrt(width)
    transitions[current] = unit
    used = rng.permutation(num_slots)[: rng.integers(1, num_slots + 1)]
    row_slot = rng.choice(used if rng.random() < 0.5 else [current], classes)
    weights = np.einsum("cd,cde->ce", v, transitions[row_slot]) @ u + w
    gram = weights.T @ weights
    floats = {
        "v": v,
        "u": u,
        "u_inverse_transpose": np.linalg.inv(u).T,
        "gram": (gram + gram.T) / 2,
        "shift": w,
        "row_sum": weights.sum(axis=0),
        "transitions": transitions,
    }
    integers = {
        "row_slot": row_slot.astype(np.uint8),
        "slot_rows": np.bincount(row_slot, minlength=num_slots).astype(np.int64),
        "current_slot": np.int64(current),
    }
    inputs = {name: Variable(x.astype(dtype.as_numpy_dtype)) for name, x in floats.items()}
    return inputs | {name: Variable(x) for name, x in integers.items()}, dtype


def _factored_batch(rng: Rng, inputs: dict[str, Any], dtype: tf.DType) -> None:
    classes, width = inputs["v"].values.shape
    batch = _size(rng, most=30)
    inputs["hidden"] = _floats(rng, batch, width, dtype=dtype.as_numpy_dtype)
    inputs["labels"] = _ids(rng, classes, batch, _size(rng, most=4))


def _factored_statistics(rng: Rng) -> Call:
    inputs, dtype = _factored_state(rng)
    _factored_batch(rng, inputs, dtype)
    update_rows = bool(rng.random() < 0.7)
    return Call("TfxFactoredStatistics", inputs, {"dtype": dtype, "update_rows": update_rows})


def _factored_update(rng: Rng) -> Call:
    inputs, dtype = _factored_state(rng)
    _factored_batch(rng, inputs, dtype)
    hidden, numpy_dtype = inputs["hidden"], dtype.as_numpy_dtype
    batch = len(hidden)
    eta = float(rng.choice([0.01, 0.3]))
    g_squares = rng.normal(size=batch) if rng.random() < 0.5 else rng.random(batch)
    norm = np.linalg.norm(hidden.T @ (np.abs(g_squares)[:, np.newaxis] * hidden), 2)
    if norm > 0:  # 2 eta |H^T |G| H|_2 is then up to 0.9, or the step is large but converges
        g_squares *= rng.choice([0.1, 0.9, 1.5]) / (2 * eta * norm)
    floats = {
        "gram_hidden": hidden @ inputs["gram"].values,
        "u_hidden": hidden @ inputs["u"].values.T,
        "g_target": rng.normal(size=inputs["labels"].shape),
        "g_squares": g_squares,
        "g_sum": 0.1 * rng.normal(size=batch),
        "learning_rate": np.asarray(eta),
        "weight_decay": np.asarray(rng.choice([0.0, 0.1])),
    }
    inputs |= {name: x.astype(numpy_dtype) for name, x in floats.items()}
    attributes = {
        "dtype": dtype,
        "update": bool(rng.random() < 0.8),
        "max_condition": float(rng.choice([0.5, 4.0, np.inf])),
    }
    return Call("TfxFactoredUpdate", inputs, attributes)


def _shard(rng: Rng, inputs: dict[str, Any], num_rows: int) -> None:
    """Sets rows to some classes of a layer, and labels to any of its classes."""
    stride, first = int(rng.choice([1, 1, 3])), 0
    if stride > 1:
        first = int(rng.integers(0, stride))
    num_classes = first + stride * num_rows if stride > 1 else num_rows
    if stride > 1:
        inputs["labels"] = _ids(rng, num_classes, *inputs["labels"].shape)
    numbers = {"first_class": first, "class_stride": stride, "num_classes": num_classes}
    inputs |= {name: np.int64(x) for name, x in numbers.items()}


def _factored_settle(rng: Rng) -> Call:
    inputs, dtype = _factored_state(rng)
    return Call("TfxFactoredSettle", inputs, {"dtype": dtype})


# The hash index


def _functions(rng: Rng, width: int, num_tables: int) -> tuple[dict[str, np.ndarray], dict]:
    """Draws hash functions of vectors of a width, of at least 1, and the attributes for them."""
    hashes_per_table = int(rng.integers(1, 4))
    count, bins = num_tables * hashes_per_table, 1
    elements, planes = np.zeros([0, 0], np.int32), np.zeros([0, 0], np.float32)
    kind = rng.choice(["sign", "wta", "dwta"])
    if kind == "sign" or width < 2:
        planes = _integers(rng, count + int(rng.integers(0, 3)), width)
    else:
        window = int(rng.integers(2, min(width, 4) + 1))
        bins = width // window if kind == "dwta" else 1
        groups = [
            rng.permutation(width)[: bins * window].reshape(bins, window)
            for _ in range(-(-count // bins))
        ]
        elements = np.concatenate(groups).astype(np.int32)
    attributes = {
        "num_tables": num_tables,
        "hashes_per_table": hashes_per_table,
        "bins": bins,
    }
    return {"elements": elements, "planes": planes}, attributes


def _hash_codes(rng: Rng) -> Call:
    width = _size(rng, least=1, most=20)
    functions, attributes = _functions(rng, width, int(rng.integers(1, 5)))
    vectors = _integers(rng, _size(rng, most=80), width)
    vectors[rng.random(vectors.shape) < rng.choice([0.0, 0.7])] = 0
    return Call("TfxHashCodes", {"vectors": vectors, **functions}, attributes)


def _tables(rng: Rng, num_tables: int, num_classes: int, num_buckets: int) -> dict[str, Variable]:
    """Draws tables with all classes, but some, in some bucket."""
    entries = np.full([num_tables, num_classes], -1, np.int32)
    starts = np.zeros([num_tables, num_buckets + 1], np.int32)
    for t in range(num_tables):
        codes = rng.integers(-1 if rng.random() < 0.3 else 0, num_buckets, num_classes)
        order = np.argsort(codes, kind="stable")[np.count_nonzero(codes < 0) :]
        entries[t, : len(order)] = order
        starts[t, 1:] = np.cumsum(np.bincount(codes[codes >= 0], minlength=num_buckets))
    return {"entries": _of_index(entries), "starts": _of_index(starts)}


def _of_index(numbers: np.ndarray) -> Variable:
    return Variable(numbers.astype(np.uint32))  # -1 as 2^32 - 1


def _hash_index_update(rng: Rng) -> Call:
    num_tables, classes = int(rng.integers(1, 4)), _size(rng, least=1, most=100)
    width, dtype = _size(rng, least=1, most=20), _dtype_of_weights(rng)
    # sqrt(R^2 - |w|^2) of whole numbers w is then no fraction that a plane of small whole numbers
    # could make a tie of, which op and fallback may round to either side.
    radii = np.array([7.3, 3.3, 1.3], np.float32)[: rng.choice([0, 0, 1, 3])]
    longer = 2 if len(radii) else 0
    functions, attributes = _functions(rng, width + longer, num_tables)
    base = functions["elements"].shape[1] if len(functions["elements"]) else 2
    num_buckets = max(len(radii), 1) * base ** attributes["hashes_per_table"]
    now, numpy_dtype = int(rng.integers(1, 9)), dtype.as_numpy_dtype
    tables = np.sort(rng.integers(0, num_tables + 1, 2)) if rng.random() < 0.8 else [0, num_tables]
    inputs = {
        **_tables(rng, num_tables, classes, num_buckets),
        "touched_at": _of_index(rng.integers(0, now, classes)),
        "built_at": _of_index(rng.integers(-1, now, num_tables)),
        "kernel": Variable(_integers(rng, classes, width).astype(numpy_dtype)),
        "bias": [Variable(_integers(rng, classes).astype(numpy_dtype))] * int(rng.integers(0, 2)),
        **functions,
        "touched": _ids(rng, classes, _size(rng)),
        "now": np.int32(now),
        "tables": np.array(tables, np.int64),
        "radii": radii,
    }
    return Call("TfxHashIndexUpdate", inputs, attributes | {"dtype": dtype})


def _bucket_candidates(rng: Rng) -> Call:
    num_tables, classes = int(rng.integers(1, 5)), _size(rng, least=1, most=60)
    num_ranges, of_range = int(rng.integers(1, 3)), int(rng.integers(1, 9))
    shape = (_size(rng, most=20), int(rng.integers(1, 4)), num_tables)
    inputs = {
        **_tables(rng, num_tables, classes, num_ranges * of_range),
        "codes": rng.integers(-1, of_range, shape).astype(np.int32),
        "order": rng.permutation(num_tables).astype(np.int32),
        "rotations": rng.integers(0, 2**32, num_tables),
        "first_class": np.int64(rng.integers(0, classes)),
        "budget": np.int64(rng.integers(1, classes + 1)),
    }
    attributes = {
        "own": bool(rng.random() < 0.5),
        "gives_marks": bool(rng.random() < 0.5),
        "most_of_bucket": int(rng.choice([1, 3, 1000])),
        "num_ranges": num_ranges,
    }
    return Call("TfxBucketCandidates", inputs, attributes)


def _multi_index_draws(rng: Rng) -> Call:
    words, classes, batch = int(rng.integers(1, 7)), _size(rng, least=1), _size(rng, most=9)
    codes = rng.integers(0, words**2, classes)
    weights = rng.integers(1, 100, classes)
    inputs = {
        "first": rng.normal(size=(batch, words)),
        "second": rng.normal(size=(batch, words)),
        "codes": codes.astype(np.int32),
        "entries": np.argsort(codes, kind="stable").astype(np.int32),
        "starts": np.searchsorted(np.sort(codes), np.arange(words**2 + 1)).astype(np.int32),
        "sums": np.concatenate([[0], np.cumsum(weights)]),
        "uniform": rng.random((batch, _size(rng), 3)),
    }
    return Call("TfxMultiIndexDraws", inputs, {})


# Exact evaluation, and the rest


def _streamed_logits(rng: Rng, op: str = "TfxStreamedLogits") -> Call:
    classes, width, batch = _size(rng, most=80), _size(rng), _size(rng)
    dtype = _dtype_of_weights(rng)
    numpy_dtype = dtype.as_numpy_dtype
    kernel = _integers(rng, classes, width).astype(numpy_dtype)
    inputs = {
        "hidden": _integers(rng, batch, width),
        "kernel": kernel if op == "TfxStreamedLogits" else Variable(kernel),
        "bias": _integers(rng, classes if rng.random() < 0.5 else 0).astype(numpy_dtype),
        "labels": _ids(rng, classes, batch, _size(rng, most=5)),
    }
    attributes: dict[str, Any] = {"k": int(rng.integers(0, classes + 1))}
    scores = _integers(rng, *inputs["labels"].shape) if rng.random() < 0.3 else np.zeros((0, 0))
    inputs["target_scores"] = scores.astype(np.float32)
    _shard(rng, inputs, classes)
    return Call(op, inputs, attributes)


def _bounded_top_k(rng: Rng) -> Call:
    call = _streamed_logits(rng, "TfxResourceStreamedLogits")
    kernel = call.inputs["kernel"].values
    if rng.random() < 0.5:  # enough classes for bounds to be used
        kernel = np.tile(kernel, (8, 1))
    rows = RowBounds()
    rows.rebuild(tf.Variable(kernel))
    inputs = {
        "hidden": call.inputs["hidden"],
        "bias": _integers(rng, len(kernel) if rng.random() < 0.5 else 0).astype(kernel.dtype),
        "kernel": Variable(kernel),
        "rows": Variable(rows.quanta.numpy()),
        "scales": Variable(rows.scales.numpy()),
        "errors": Variable(rows.errors.numpy()),
    }
    return Call("TfxBoundedTopK", inputs, call.attributes)


def _probed_top_k(rng: Rng) -> Call:
    """Reads all lists, so that the result is over all classes."""
    call = _bounded_top_k(rng)
    while not len(call.inputs["kernel"].values):  # without classes there are no lists
        call = _bounded_top_k(rng)
    inputs = {name: call.inputs[name] for name in ("hidden", "bias", "kernel")}
    classes = len(inputs["kernel"].values)
    index = InvertedFile(min(_size(rng, least=1), classes))
    index.rebuild(tf.Variable(inputs["kernel"].values))
    tables = (*index.rows, index.classes, index.centers, index.offsets, index.penalties, index.ends)
    names = ("rows", "scales", "errors", "classes", "centers", "offsets", "penalties", "ends")
    inputs |= {name: Variable(table.numpy()) for name, table in zip(names, tables, strict=True)}
    attributes = {**call.attributes, "num_probed": len(inputs["ends"].values)}
    return Call("TfxProbedTopK", inputs, attributes)


def _resource_streamed_logits(rng: Rng) -> Call:
    return _streamed_logits(rng, "TfxResourceStreamedLogits")


def _filtered_top_k(rng: Rng) -> Call:
    call = _streamed_logits(rng, "TfxResourceStreamedLogits")
    inputs = dict(call.inputs)
    del inputs["target_scores"]
    shard = {name: inputs.pop(name) for name in ("first_class", "class_stride", "num_classes")}
    order = ("hidden", "kernel", "bias")
    inputs = {**{name: inputs[name] for name in order}, "excluded": inputs["labels"]}
    batch, rows = len(inputs["hidden"]), len(inputs["kernel"].values)
    has_groups = rng.random() < 0.5
    inputs["groups"] = rng.integers(-1, 3, rows if has_groups else 0).astype(np.int32)
    inputs["wanted"] = rng.integers(-1, 3, batch if has_groups else 0).astype(np.int32)
    return Call("TfxFilteredTopK", {**inputs, **shard}, call.attributes)


def _instruction_set(rng: Rng) -> Call:
    return Call("TfxInstructionSet", {}, {})


def _phase_seconds(rng: Rng) -> Call:
    return Call("TfxPhaseSeconds", {"record": np.bool_(rng.random() < 0.5)}, {})


PROBLEMS: dict[str, Callable[[Rng], Call]] = {
    "TfxBoundedTopK": _bounded_top_k,
    "TfxBucketCandidates": _bucket_candidates,
    "TfxCandidateLogits": _candidate_logits,
    "TfxMeanOfRows": _mean_of_rows,
    "TfxSoftmaxSelection": _softmax_selection,
    "TfxSoftmaxUpdate": _softmax_update,
    "TfxCandidateUpdate": _candidate_update,
    "TfxFactoredSettle": _factored_settle,
    "TfxFactoredStatistics": _factored_statistics,
    "TfxFactoredUpdate": _factored_update,
    "TfxFilteredTopK": _filtered_top_k,
    "TfxHashCodes": _hash_codes,
    "TfxHashIndexUpdate": _hash_index_update,
    "TfxInstructionSet": _instruction_set,
    "TfxMultiIndexDraws": _multi_index_draws,
    "TfxPhaseSeconds": _phase_seconds,
    "TfxResourceStreamedLogits": _resource_streamed_logits,
    "TfxProbedTopK": _probed_top_k,
    "TfxRowUpdate": _row_update,
    "TfxStreamedLogits": _streamed_logits,
}
