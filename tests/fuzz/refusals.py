# SPDX-License-Identifier: Apache-2.0
"""Calls for which each op must raise an error, one fault each, with all from random calls.

As a program it makes calls [first, end) of the table, and reports as `make_calls.py` does.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
import tensorflow as tf
from fuzz.calls import Call, Variable, run_op
from fuzz.composed import run_composed
from fuzz.problems import random_call

_LARGE = 2**40


class Refusal(NamedTuple):
    """A call with one fault.

    Attributes:
        op: The op.
        name: The name of the input or attribute; or `"all"`: several that fit together.
        change: A function from valid to wrong values.
        message: The error, a regular expression.
        by_composed: Whether composed ops raise an error, too; else they can't be called.
    """

    op: str
    name: str
    change: Callable[[Any], Any]
    message: str
    by_composed: bool = True


def _put(place: Any, value: Any) -> Callable[[np.ndarray], np.ndarray]:
    def change(values: np.ndarray) -> np.ndarray:
        values = np.array(values)
        values[place] = value
        return values

    return change


def _shape(*shape: int) -> Callable[[np.ndarray], np.ndarray]:
    return lambda values: np.zeros(shape, values.dtype)


def _to(value: Any) -> Callable[[Any], Any]:
    return lambda _: value


def _dtype(dtype: Any) -> Callable[[np.ndarray], np.ndarray]:
    return lambda values: values.astype(dtype)


def _without_columns(values: np.ndarray) -> np.ndarray:
    return values[:, :0]


def _of_state(op: str) -> list[Refusal]:
    """Faults for which each op on a factored layer must raise an error."""
    return [
        Refusal(op, "all", _state_without_columns, "v must be a matrix .* D at least 1; got"),
        Refusal(op, "v", _without_columns, "v must be a matrix .* D at least 1; got"),
        Refusal(op, "v", lambda v: v[:0], "v must be a matrix .* C and D at least 1; got"),
        Refusal(op, "v", lambda v: v[0], "v must be a matrix"),
        Refusal(op, "u", lambda u: u[1:], "u must .*shape.*; got"),
        Refusal(op, "gram", _dtype(np.int32), "gram must be .*; got int32"),
        Refusal(op, "transitions", lambda t: t[:, 1:], "transitions must .*shape.*; got"),
        Refusal(op, "row_slot", _dtype(np.int32), "row_slot must be uint8.*; got int32"),
        Refusal(op, "row_slot", lambda s: s[1:], "row_slot must .*shape.*; got"),
        Refusal(op, "current_slot", _to(np.int64(8)), r"current_slot must be in \[0, 8\).*got.*8"),
        Refusal(
            op, "current_slot", _to(np.int64(-1)), r"current_slot must be in \[0, 8\).*got.*-1"
        ),
        Refusal(op, "current_slot", _shape(1), "current_slot must .*shape"),
        Refusal(op, "slot_rows", _put(3, -1), r"slot_rows must be in \[0, C\].*-1"),
        Refusal(op, "slot_rows", _put(3, 10**6), r"slot_rows must be in \[0, C\].*1000000"),
        Refusal(op, "slot_rows", lambda n: n * 0, "slot_rows must .* sum C.*got"),
        Refusal(op, "slot_rows", _shape(2, 2), "slot_rows must .*; got"),
    ]


def _state_without_columns(call: Call) -> Call:
    for name, size in (("v", 2), ("u", 2), ("u_inverse_transpose", 2), ("gram", 2), ("shift", 1)):
        values = call.inputs[name].values
        shape = (len(values), 0) if name == "v" else (0,) * size
        call = call.replace_input(name, Variable(np.zeros(shape, values.dtype)))
    dtype = call.inputs["v"].values.dtype
    call = call.replace_input("row_sum", Variable(np.zeros(0, dtype)))
    call = call.replace_input("transitions", Variable(np.zeros((8, 0, 0), dtype)))
    for name in ("hidden", "gram_hidden", "u_hidden", "target_sums"):
        if name in call.inputs:
            call = call.replace_input(name, call.inputs[name][:, :0])
    return call


def _layer_without_classes(call: Call) -> Call:
    for name in [name for name, _ in call.variables()]:
        values = dict(call.variables())[name].values
        call = call.replace_input(name, Variable(values[:0]))
    for name in ("labels", "candidates"):
        call = call.replace_input(name, call.inputs[name] * 0 - 1)
    return call


def _move_one(rows: np.ndarray) -> np.ndarray:
    """Counts a row in another slot."""
    rows = np.array(rows)
    slot = int(rows.argmax())
    rows[slot] -= 1
    rows[slot - 1] += 1
    return rows


def _of_all_rows(op: str) -> list[Refusal]:
    return [
        Refusal(op, "row_slot", _put(1, 8), r"row_slot must be in \[0, 8\); got.*8.*position.*1"),
        Refusal(op, "row_slot", _put(1, 255), r"row_slot must be in \[0, 8\); got.*255"),
        Refusal(op, "slot_rows", _move_one, "slot_rows must be how many rows are in each slot"),
    ]


def _of_labels(op: str) -> list[Refusal]:
    message = r"row_slot must be in \[0, 8\); got.*9.*position"
    return [
        Refusal(op, "row_slot", lambda slots: slots * 0 + 9, message),
        Refusal(op, "labels", _put((0, 0), 10**6), r"labels must be class ids in \[-1.*1000000"),
        Refusal(op, "labels", _put((0, 0), -2), r"labels must be class ids in \[-1.*got.*-2"),
        Refusal(op, "labels", _shape(0, 1), "labels must be .*B of hidden"),
        Refusal(op, "labels", _shape(3), "labels must "),
        Refusal(op, "hidden", _without_columns, "hidden must be .*D of "),
        Refusal(op, "hidden", _put((0, 0), np.nan), "hidden must be finite; got"),
        Refusal(op, "hidden", _shape(3), "hidden must "),
    ]


def _of_factored_update(op: str) -> list[Refusal]:
    return [
        Refusal(op, "gram_hidden", _put((0, 0), np.inf), "gram_hidden must be finite; got"),
        Refusal(op, "u_hidden", _put((0, 0), np.nan), "u_hidden must be finite; got"),
        Refusal(op, "g_target", lambda g: g[1:], "g_target must have .*shape"),
        Refusal(op, "g_squares", _shape(), "g_squares must have .*shape"),
        Refusal(op, "g_squares", lambda g: g * 0 + 1e30, "learning_rate.* lambda_max"),
        # The product overflows: the largest eigenvalue is NaN.
        Refusal(op, "hidden", lambda h: h * 0 + np.finfo(h.dtype).max, "learning_rate.*lambda_max"),
        Refusal(op, "learning_rate", _shape(1), "learning_rate .*must.*scalar"),
        Refusal(
            op, "weight_decay", lambda x: x * 0 - 1, "weight_decay must be at least 0.*got.*-1"
        ),
        Refusal(op, "max_condition", _to(np.nan), "max_condition must be a number.*; got"),
    ]


def _of_shard(op: str) -> list[Refusal]:
    message = "first_class, class_stride and num_classes must be such that"
    return [
        Refusal(op, "first_class", _to(np.int64(-1)), message),
        Refusal(op, "first_class", _to(np.int64(2**62)), message),
        Refusal(op, "first_class", _shape(1), "first_class must be a scalar|rank 0", False),
        Refusal(op, "class_stride", _to(np.int64(0)), message),
        Refusal(op, "num_classes", _to(np.int64(0)), message),
    ]


def _of_candidates(op: str) -> list[Refusal]:
    return [
        Refusal(op, "all", _layer_without_classes, r"kernel must be .*\[C, D\] with C at least 1"),
        Refusal(op, "kernel", lambda w: w[:0], r"kernel must be .*\[C, D\] with C at least 1.*got"),
        Refusal(op, "kernel", lambda w: w[0], r"kernel must (be .*\[C, D\]|have rank 2)"),
        Refusal(op, "kernel", _dtype(np.int32), "(kernel|weights) must be .*; got.*int32", False),
        Refusal(op, "bias 0", lambda b: b[1:], r"bias must be .*\[C\] with the C of kernel"),
        Refusal(op, "bias 0", _dtype(np.float64), "bias must be .*; got.*(double|float64)"),
        Refusal(op, "hidden", _without_columns, r"hidden must be \[N, D\] with the D of kernel"),
        Refusal(op, "hidden", _put((0, 0), np.inf), "hidden must be finite; got"),
        Refusal(op, "labels", _put((0, 0), 10**6), r"labels must be class ids in \[-1.*1000000"),
        Refusal(op, "labels", _put((0, 0), -2), r"labels must be class ids in \[-1.*-2"),
        Refusal(op, "labels", lambda y: y[1:], r"labels must be \[N, K\]|\[N, K\] as the labels"),
        Refusal(op, "candidates", lambda c: c * 0 + 10**6, "candidates must be class ids.*1000000"),
        Refusal(op, "candidates", _shape(2, 2, 2), "candidates must (be|have)"),
        Refusal(op, "candidates", _shape(0, _LARGE), "candidates must be|must be fewer", False),
    ]


def _of_softmax(op: str) -> list[Refusal]:
    return [
        Refusal(op, "kernel", lambda w: w[0], r"kernel must (be .*\[C, D\]|have rank 2)"),
        Refusal(op, "kernel", _dtype(np.int32), "(kernel|weights) must .*; got.*int32", False),
        Refusal(op, "bias 0", lambda b: b[1:], "bias must "),
        Refusal(op, "bias 0", lambda b: b[:0], "bias must "),
        Refusal(op, "bias 0", _dtype(np.float64), "must .*; got.*(double|float64|float)"),
        Refusal(op, "hidden", _without_columns, "hidden must "),
        Refusal(op, "hidden", _put((0, 0), np.inf), "hidden must be finite; got"),
        Refusal(op, "labels", _put((0, 0), 10**6), "labels must be class ids.*1000000"),
        Refusal(op, "labels", lambda y: y[1:], "labels must|as labels"),
    ]


def _of_softmax_selection(op: str) -> list[Refusal]:
    return [
        Refusal(op, "seed", _shape(3), r"seed must be \[2\]"),
        Refusal(op, "num_selected", _to(_LARGE), "num_selected must be .*1099511627776"),
        *_of_shard(op)[:-1],  # without classes, there are too few for num_selected
    ]


def _of_softmax_update(op: str) -> list[Refusal]:
    return [
        Refusal(op, "logsumexp", lambda z: z[1:], r"logsumexp must be \[B\]"),
        Refusal(op, "logsumexp", _put(0, np.inf), "logsumexp must be finite; got"),
        Refusal(op, "logsumexp_gradient", lambda a: a[1:], r"logsumexp_gradient must be \[B\]"),
        Refusal(op, "logsumexp_gradient", _put(0, np.nan), "logsumexp_gradient must be finite"),
        Refusal(op, "mean_gradient", _shape(10**6), r"mean_gradient must be \[B\]"),
        Refusal(op, "mean_gradient", _shape(2, 2), "mean_gradient must be|rank 1", False),
        Refusal(op, "mean_gradient", _put(0, np.inf), "mean_gradient must be finite"),
        Refusal(op, "target_gradient", _without_columns, r"target_gradient must be \[B, K\]"),
        *_of_steps(op),
    ]


def _of_mean_of_rows(op: str) -> list[Refusal]:
    message = r"variable must be .*\[C, \.\.\.\] with C at least 1"
    return [
        Refusal(op, "variable", lambda w: w[:0], message),
        Refusal(op, "variable", _shape(), message),
        Refusal(op, "variable", _dtype(np.int32), "(variable|weights) must .*; got.*int32", False),
    ]


def _of_candidate_update(op: str) -> list[Refusal]:
    return [
        Refusal(op, "true_gradient", _shape(1), r"true_gradient must be \[N, K\]", False),
        Refusal(op, "candidate_gradient", _without_columns, r"candidate_gradient must be \[N, S\]"),
        *_of_steps(op),
    ]


def _of_steps(op: str) -> list[Refusal]:
    rate = "learning_rate must be finite, at least 0"
    return [
        Refusal(op, "learning_rate", _to(np.float32(-1)), f"{rate}.*-1"),
        Refusal(op, "learning_rate", _to(np.float32(np.nan)), f"{rate}.*nan"),
        Refusal(op, "rule", lambda rule: rule[:-1], "rule must have shape|must be .* numbers"),
        Refusal(
            op, "rule", _put(0, np.nan), "rule must hold a finite weight_decay|weight_decay must be"
        ),
        Refusal(op, "rule", _put(1, 0), "rule must hold .*clip_norm|row_clip_norm must be"),
    ]


def _of_row_update(op: str) -> list[Refusal]:
    return [
        Refusal(op, "variable", _shape(), "variable must be .*rank 1 or higher"),
        Refusal(op, "ids", _put(0, 10**6), "ids must be class ids in .*1000000"),
        Refusal(op, "ids", _put(0, -1), "ids must be class ids in .*-1"),
        Refusal(op, "ids", lambda ids: ids * 0, "ids must not repeat a row"),
        Refusal(op, "ids", lambda ids: ids[np.newaxis], r"ids must be \[n\]"),
        Refusal(op, "gradient", lambda g: g[1:], r"gradient must be \[n, D\]"),
        Refusal(op, "gradient", lambda g: g * np.float32(np.nan), "gradient must be finite; got"),
        Refusal(op, "slots 0", lambda slot: slot[1:], "slot .*must .*shape"),
        Refusal(op, "rule", _put(3, 0.5), "rule must hold .*0.5|nesterov must be 0 or 1; got 0.5"),
    ]


def _of_functions(op: str) -> list[Refusal]:
    return [
        Refusal(op, "elements", _put((0, 1), 10**6), r"elements must be in \[0.*1000000.*\[?0, 1|"),
        Refusal(op, "elements", _put((0, 0), -1), r"elements must be in \[0.*got.*-1"),
        Refusal(op, "elements", _shape(0, 0), "one of elements and planes must be|starts must"),
        Refusal(op, "elements", lambda e: e[:, :1], "window of at least 2|starts must be"),
        Refusal(
            op, "num_tables", _to(_LARGE), "hashes_per_table . num_tables = ", op == "TfxHashCodes"
        ),
        # The product is 2^64, which is 0 in 64 bits.
        Refusal(op, "hashes_per_table", _to(2**62), "hashes|buckets|starts"),
        Refusal(op, "bins", _to(2**62), "bins|hashes"),
    ]


def _of_index_update(op: str) -> list[Refusal]:
    return [
        Refusal(op, "kernel", lambda w: w[:0], "(entries|kernel|bias) must be"),
        Refusal(op, "entries", lambda e: e[:, 1:], "entries must be"),
        Refusal(op, "entries", lambda e: e[:0], "entries must be"),
        Refusal(op, "entries", lambda e: e[0], "entries must be"),
        Refusal(op, "starts", lambda s: s[:, 1:], "starts must be"),
        Refusal(op, "touched_at", lambda t: t[1:], "touched_at .*must be"),
        Refusal(op, "built_at", _dtype(np.int64), "built_at must be uint32", False),
        Refusal(op, "touched", _put(0, 10**6), "touched must be class ids.*1000000"),
        Refusal(op, "touched", lambda t: t[np.newaxis], r"touched must be \[n\]"),
        Refusal(op, "now", _to(np.int32(-1)), "now must be at least 0; got.*-1"),
        Refusal(op, "now", _shape(1), "now must be a scalar"),
        Refusal(op, "tables", _to(np.array([1, 0])), "tables must be a range.*1.*0"),
        Refusal(op, "tables", _to(np.array([0, 99])), "tables must be a range.*99"),
        Refusal(op, "tables", _shape(3), "tables must be .first"),
        Refusal(op, "radii", _shape(1, 1), r"radii must be \[m\]"),
    ]


def _of_bucket_candidates(op: str) -> list[Refusal]:
    return [
        Refusal(op, "entries", lambda e: e[:, :0], "entries must be .*C at least 1"),
        Refusal(op, "entries", lambda e: e * 0 - 7, "corrupt.*rebuild the index"),
        Refusal(op, "entries", lambda e: e * 0 + 10**6, "corrupt.*rebuild the index"),
        Refusal(op, "starts", lambda s: s + 10**6, "corrupt.*rebuild the index"),
        Refusal(op, "starts", lambda s: s[:, :1], "starts.* must be"),
        Refusal(op, "codes", lambda c: c * 0 + 10**6, "codes must be below"),
        # Only if the last one is read: candidates may be enough before.
        Refusal(op, "codes", _put((-1, -1, -1), 10**6), "codes must be below"),
        # No element, but many examples.
        Refusal(
            op,
            "codes",
            lambda c: np.zeros([_LARGE, 0, c.shape[2]], np.int32),
            "codes must",
            False,
        ),
        Refusal(op, "order", lambda o: o * 0 - 1, "order must be a permutation"),
        Refusal(op, "rotations", lambda r: r * 0 - 1, r"rotations must be in \[0, 2\^32\).*-1"),
        Refusal(op, "rotations", lambda r: r[1:], r"rotations must be \[L\]"),
        Refusal(op, "first_class", _to(np.int64(-1)), r"first_class must be .*\[0.*-1"),
        Refusal(op, "budget", _to(np.int64(0)), r"budget must be in \[1, C\].*0"),
        Refusal(op, "budget", _to(np.int64(_LARGE)), r"budget must be in \[1, C\].*1099511627776"),
        Refusal(op, "num_ranges", _to(2**62), "num_ranges"),
    ]


def _of_streamed_logits(op: str) -> list[Refusal]:
    return [
        Refusal(op, "hidden", _without_columns, "hidden must "),
        Refusal(op, "hidden", _shape(_LARGE, 0), "hidden must |dimensions below", False),
        Refusal(op, "kernel", lambda w: w[0], "kernel.* must have rank"),
        Refusal(op, "bias", lambda b: b[1:], "bias must "),
        Refusal(op, "labels", _put((0, 0), 10**6), "labels must be class ids.*1000000"),
        Refusal(op, "labels", lambda y: y[1:], "labels must|as labels"),
        Refusal(op, "labels", lambda y: y[0], "labels.* must have rank"),
        Refusal(op, "k", _to(_LARGE), "k must be .*1099511627776"),
        Refusal(
            op, "target_scores", _shape(77, 3), r"target_scores must be \[B, K\] as the labels"
        ),
        Refusal(op, "target_scores", _shape(3), "target_scores must (have rank 2|be)"),
        *_of_shard(op),
    ]


def _of_bounded_top_k(op: str) -> list[Refusal]:
    return [
        Refusal(op, "hidden", _without_columns, "hidden must "),
        Refusal(op, "kernel", lambda w: w[0], r"kernel.* must (have rank|be \[C, D\])"),
        Refusal(op, "bias", lambda b: b[1:], "bias must "),
        Refusal(op, "k", _to(_LARGE), "k must be .*1099511627776"),
        Refusal(op, "rows", lambda q: q[:, :, 1:], "rows must be "),
        Refusal(op, "scales", lambda s: s[:, 1:], "scales must be "),
        Refusal(op, "errors", lambda e: e[0], "errors must be "),
    ]


def _of_filtered_top_k(op: str) -> list[Refusal]:
    return [
        Refusal(op, "hidden", _without_columns, "hidden must "),
        Refusal(op, "kernel", lambda w: w[0], "kernel.* must have rank", False),
        Refusal(op, "bias", lambda b: b[1:], "bias must "),
        Refusal(op, "k", _to(_LARGE), "k must be .*1099511627776"),
        Refusal(op, "excluded", _put((0, 0), 10**6), "excluded must be .*1000000"),
        Refusal(op, "excluded", lambda e: e[1:], "excluded must be .*the B of hidden", False),
        Refusal(op, "groups", lambda g: g[1:], "groups must have one entry", False),
        Refusal(op, "wanted", lambda w: w[1:], "wanted must have one entry", False),
        *_of_shard(op),
    ]


def _of_probed_top_k(op: str) -> list[Refusal]:
    return [
        Refusal(op, "classes", lambda c: c[:, 1:], "classes must be "),
        Refusal(op, "centers", lambda c: c[:, :, 1:], "centers must be "),
        Refusal(op, "offsets", lambda c: c[0], "offsets must be "),
        Refusal(op, "penalties", lambda p: p[1:], "penalties must be "),
        Refusal(op, "ends", lambda e: e[:0], "must be "),
        Refusal(op, "num_probed", _to(_LARGE), "num_probed must be at most .*1099511627776"),
    ]


def _of_handles(op: str, name: str) -> list[Refusal]:
    """Inputs that are not variables."""
    message = f"{name} must be the handle of"
    return [
        Refusal(op, name, lambda v: v._replace(handle="no value"), message, False),
        Refusal(op, name, lambda v: v._replace(handle="two handles"), message, False),
        Refusal(op, name, lambda v: v._replace(handle="table"), message, False),
        Refusal(
            op,
            name,
            lambda v: v._replace(handle="no handle"),
            "handle of|Empty resource handle",
            False,
        ),
    ]


REFUSALS = [
    *_of_state("TfxFactoredStatistics"),
    *_of_state("TfxFactoredUpdate"),
    *_of_state("TfxFactoredSettle"),
    *_of_all_rows("TfxFactoredSettle"),
    *_of_labels("TfxFactoredStatistics"),
    *_of_labels("TfxFactoredUpdate"),
    *_of_factored_update("TfxFactoredUpdate"),
    *_of_candidates("TfxCandidateLogits"),
    *_of_candidates("TfxCandidateUpdate"),
    *_of_candidate_update("TfxCandidateUpdate"),
    *_of_softmax("TfxSoftmaxSelection"),
    *_of_softmax("TfxSoftmaxUpdate"),
    *_of_softmax_selection("TfxSoftmaxSelection"),
    *_of_softmax_update("TfxSoftmaxUpdate"),
    *_of_mean_of_rows("TfxMeanOfRows"),
    *_of_row_update("TfxRowUpdate"),
    *_of_functions("TfxHashCodes"),
    *_of_functions("TfxHashIndexUpdate"),
    *_of_index_update("TfxHashIndexUpdate"),
    *_of_bucket_candidates("TfxBucketCandidates"),
    *_of_streamed_logits("TfxStreamedLogits"),
    *_of_streamed_logits("TfxResourceStreamedLogits"),
    *_of_filtered_top_k("TfxFilteredTopK"),
    *_of_handles("TfxFilteredTopK", "kernel"),
    *_of_bounded_top_k("TfxBoundedTopK"),
    *_of_bounded_top_k("TfxProbedTopK"),
    *_of_probed_top_k("TfxProbedTopK"),
    *_of_handles("TfxFactoredSettle", "v"),
    *_of_handles("TfxCandidateLogits", "kernel"),
    *_of_handles("TfxSoftmaxSelection", "kernel"),
    *_of_handles("TfxMeanOfRows", "variable"),
    *_of_handles("TfxBoundedTopK", "errors"),
    *_of_handles("TfxProbedTopK", "ends"),
    *_of_handles("TfxSoftmaxUpdate", "kernel"),
    *_of_handles("TfxRowUpdate", "variable"),
    *_of_handles("TfxHashIndexUpdate", "entries"),
    *_of_handles("TfxBucketCandidates", "starts"),
    *_of_handles("TfxResourceStreamedLogits", "kernel"),
    Refusal("TfxPhaseSeconds", "record", _shape(2), "record must be a scalar", False),
]


def call_of(index: int) -> Call:
    """Returns the call of an entry of the table."""
    refusal = REFUSALS[index]
    call = _whole_call(refusal)
    note = (f"{refusal.name} is wrong",)
    if refusal.name == "all":
        return refusal.change(call)._replace(notes=note)
    if refusal.name in call.attributes:
        attributes = {**call.attributes, refusal.name: refusal.change(None)}
        return call._replace(attributes=attributes, notes=note)
    name, *place = refusal.name.split()
    value = call.inputs[name][int(place[0])] if place else call.inputs[name]
    if isinstance(value, Variable) and "handle of" not in refusal.message:
        changed = value._replace(values=refusal.change(value.values))
    else:
        changed = refusal.change(value)
    return call.replace_input(refusal.name, changed)._replace(notes=note)


def _whole_call(refusal: Refusal) -> Call:
    """Returns a call without empty inputs that the error needs."""
    for seed in range(10_000):
        call = random_call(refusal.op, np.random.default_rng([7, seed]))
        sizes = [v.values.size for _, v in call.variables()]
        sizes += [
            x.size
            for name, x in call.inputs.items()
            if isinstance(x, (np.ndarray, np.generic)) and name not in ("planes", "radii")
        ]
        lists = [x for x in call.inputs.values() if isinstance(x, list)]
        if min(sizes, default=1) > 0 and all(lists) and _is_of_use(call):
            return call
    raise AssertionError(f"no call of {refusal.op} has all arguments")


def _is_of_use(call: Call) -> bool:
    labels = call.inputs.get("labels")
    rows_of_labels = labels is None or (labels >= 0).any()
    few_rows = "v" in call.inputs and len(call.inputs["v"].values) < 3
    is_sgd = "method" not in call.attributes or call.attributes["method"] == "sgd"
    tables = call.inputs.get("tables")
    all_tables = tables is None or tables[0] < tables[1]
    return bool(rows_of_labels and not few_rows and is_sgd and all_tables)


def finding(index: int) -> str | None:
    """Makes the call of an entry; returns the fault of its result, or None."""
    refusal, call = REFUSALS[index], call_of(index)
    outcomes = {"the op": run_op(call)}
    if refusal.by_composed:
        composed = run_composed(call)
        if composed is None:
            return "composed ops can't say this"
        outcomes["composed ops"] = composed
    for name, outcome in outcomes.items():
        kinds = (tf.errors.InvalidArgumentError,)
        if name == "composed ops":
            kinds += (ValueError, TypeError)
        if not isinstance(outcome.error, kinds):
            return f"{name} did not refuse it: {outcome.error!r}"
        if re.search(refusal.message, str(outcome.error), re.DOTALL) is None:
            return f"{name} gave another error: {outcome.error}"
        if outcome.changed():
            return f"{name} changed {outcome.changed()}"
    return None


def _main() -> None:
    first, end = map(int, sys.argv[1:])
    for index in range(first, end):
        refusal = REFUSALS[index]
        what = f"{refusal.op}, {refusal.name}: {refusal.message}"
        print(json.dumps([index, what]), flush=True)
        found = finding(index)
        print(json.dumps([index, what, "refused", refusal.by_composed, found]), flush=True)


if __name__ == "__main__":
    _main()
