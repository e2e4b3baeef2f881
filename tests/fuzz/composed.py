# SPDX-License-Identifier: Apache-2.0
"""The same calls through the package's functions, from TensorFlow's own ops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from fuzz.calls import Call, Outcome, run

from tfx_largeout.class_filter import ClassFilter
from tfx_largeout.distribute.class_shard import ClassShard
from tfx_largeout.ops.candidates.candidate_logits import candidate_logits
from tfx_largeout.ops.candidates.candidate_update import candidate_update
from tfx_largeout.ops.exact.bounded_top_k import (
    BoundedRows,
    ClassesOfLists,
    bounded_top_k,
    probed_top_k,
)
from tfx_largeout.ops.exact.filtered_top_k import filtered_top_k
from tfx_largeout.ops.exact.mean_of_rows import mean_of_rows
from tfx_largeout.ops.exact.softmax_selection import softmax_selection
from tfx_largeout.ops.exact.softmax_update import softmax_update
from tfx_largeout.ops.exact.streamed_logits import streamed_logits
from tfx_largeout.ops.factored import factored_update
from tfx_largeout.ops.factored.factored_state import FactoredState
from tfx_largeout.ops.hashing.bucket_candidates import BucketOrder, bucket_candidates
from tfx_largeout.ops.hashing.hash_codes import HashFunctions, hash_codes
from tfx_largeout.ops.hashing.hash_tables import HashTables, update_tables
from tfx_largeout.ops.multi_index.multi_index_draws import ClassLists, multi_index_draws
from tfx_largeout.ops.rows.row_rule import RowRule
from tfx_largeout.ops.rows.row_update import row_update


class CannotSay(Exception):
    """The package's functions have no way to make this call."""


def run_composed(call: Call) -> Outcome | None:
    """Makes the call, or returns None if the package's functions can't express it."""
    if call.op not in _FUNCTIONS or any(v.handle != "variable" for _, v in call.variables()):
        return None
    variables = {name: tf.Variable(tf.constant(v.values)) for name, v in call.variables()}
    inputs = {name: _input(name, value, variables) for name, value in call.inputs.items()}
    try:
        function = _FUNCTIONS[call.op](inputs, call.attributes)
    except CannotSay:
        return None
    return run(function, call, variables)


def _input(name: str, value: Any, variables: dict[str, tf.Variable]) -> Any:
    if name in variables:
        return variables[name]
    if isinstance(value, list):
        return [variables[f"{name} {i}"] for i in range(len(value))]
    return tf.constant(value)


def _say(condition: bool) -> None:
    if not condition:
        raise CannotSay


def _only(variables: list[tf.Variable]) -> tf.Variable | None:
    return variables[0] if variables else None


def _check_dtype(weights: Any, attributes: dict[str, Any]) -> None:
    _say(weights.dtype == attributes["dtype"])


# Each returns a function that makes the call.


def _candidate_logits(inputs: dict[str, Any], attributes: dict[str, Any]) -> Callable[[], Any]:
    _check_dtype(inputs["kernel"], attributes)
    kernel, biases, *tensors = inputs.values()
    return lambda: candidate_logits(kernel, _only(biases), *tensors, implementation="composed")


def _softmax_selection(inputs: dict[str, Any], attributes: dict[str, Any]) -> Callable[[], Any]:
    _check_dtype(inputs["kernel"], attributes)
    kernel, biases, hidden, labels, seed, *numbers = inputs.values()
    shard = ClassShard(*(int(number) for number in _shard(*numbers)))
    return lambda: softmax_selection(
        kernel,
        _only(biases),
        hidden,
        labels,
        attributes["num_selected"],
        seed,
        shard=shard,
        products=attributes["products"],
        implementation="composed",
    )


def _mean_of_rows(inputs: dict[str, Any], attributes: dict[str, Any]) -> Callable[[], Any]:
    _check_dtype(inputs["variable"], attributes)
    return lambda: mean_of_rows(inputs["variable"], implementation="composed")


def _candidate_update(inputs: dict[str, Any], attributes: dict[str, Any]) -> Callable[[], Any]:
    _check_dtype(inputs["kernel"], attributes)
    kernel, biases, kernel_slots, bias_slots, *tensors, learning_rate, numbers = inputs.values()
    rule = _rule(attributes["method"], numbers)
    return lambda: candidate_update(
        kernel,
        _only(biases),
        kernel_slots,
        bias_slots,
        *tensors,
        rule,
        learning_rate,
        update=attributes["update"],
        gradient=attributes["gradient"],
        implementation="composed",
    )


def _softmax_update(inputs: dict[str, Any], attributes: dict[str, Any]) -> Callable[[], Any]:
    _check_dtype(inputs["kernel"], attributes)
    kernel, biases, kernel_slots, bias_slots, *tensors, mean, learning_rate, numbers = (
        inputs.values()
    )
    rule = _rule(attributes["method"], numbers)
    return lambda: softmax_update(
        kernel,
        _only(biases),
        kernel_slots,
        bias_slots,
        *tensors,
        rule,
        learning_rate,
        mean_gradient=None if mean.shape == [0] else mean,
        products=attributes["products"],
        update=attributes["update"],
        implementation="composed",
    )


def _row_update(inputs: dict[str, Any], attributes: dict[str, Any]) -> Callable[[], Any]:
    _check_dtype(inputs["variable"], attributes)
    variable, slots, ids, gradient, learning_rate, numbers = inputs.values()
    rule = _rule(attributes["method"], numbers)
    return lambda: row_update(
        variable, slots, ids, gradient, rule, learning_rate, implementation="composed"
    )


def _rule(method: str, numbers: tf.Tensor) -> RowRule:
    _say(numbers.shape.rank == 1 and numbers.shape[0] >= 2)
    weight_decay, row_clip_norm, *rest = numbers.numpy().tolist()
    row_wise = len(rest) > 9 and bool(rest[-8])
    return RowRule(
        method,
        tuple(rest[:-9] if row_wise else rest),
        weight_decay,
        None if row_clip_norm == np.inf else row_clip_norm,
        row_wise=row_wise,
    )


def _state_and_rest(
    inputs: dict[str, Any], attributes: dict[str, Any]
) -> tuple[FactoredState, list[Any]]:
    values = list(inputs.values())
    _check_dtype(values[0], attributes)
    return FactoredState(*values[:10]), values[10:]


def _factored_statistics(inputs: dict[str, Any], attributes: dict[str, Any]) -> Callable[[], Any]:
    state, tensors = _state_and_rest(inputs, attributes)
    return lambda: factored_update.factored_statistics(
        state, *tensors, update_rows=attributes["update_rows"], implementation="composed"
    )


def _factored_update(inputs: dict[str, Any], attributes: dict[str, Any]) -> Callable[[], Any]:
    state, tensors = _state_and_rest(inputs, attributes)
    hidden, labels, gram_hidden, u_hidden, *gradients, learning_rate, weight_decay = tensors
    return lambda: factored_update.factored_update(
        state,
        hidden,
        labels,
        gram_hidden,
        u_hidden,
        tuple(gradients),
        learning_rate,
        weight_decay,
        update=attributes["update"],
        max_condition=attributes["max_condition"],
        implementation="composed",
    )


def _shard(*numbers: tf.Tensor) -> ClassShard:
    _say(all(number.shape.rank == 0 for number in numbers))
    return ClassShard(*numbers)


def _factored_settle(inputs: dict[str, Any], attributes: dict[str, Any]) -> Callable[[], Any]:
    state, _ = _state_and_rest(inputs, attributes)
    return lambda: factored_update.factored_settle(state, implementation="composed")


def _hash_codes(inputs: dict[str, Any], attributes: dict[str, Any]) -> Callable[[], Any]:
    functions = HashFunctions(inputs["elements"], inputs["planes"], attributes["bins"])
    return lambda: hash_codes(
        inputs["vectors"],
        functions,
        attributes["num_tables"],
        attributes["hashes_per_table"],
        implementation="composed",
    )


def _hash_index_update(inputs: dict[str, Any], attributes: dict[str, Any]) -> Callable[[], Any]:
    _check_dtype(inputs["kernel"], attributes)
    built_at = inputs["built_at"]
    # The function takes the number of tables from there.
    _say(built_at.shape.rank == 1 and built_at.shape[0] == attributes["num_tables"])
    tables = HashTables(*list(inputs.values())[:4])
    functions = HashFunctions(inputs["elements"], inputs["planes"], attributes["bins"])
    return lambda: update_tables(
        inputs["kernel"],
        _only(inputs["bias"]),
        tables,
        functions,
        attributes["hashes_per_table"],
        inputs["touched"],
        inputs["now"],
        inputs["tables"],
        inputs["radii"],
        implementation="composed",
    )


def _bucket_candidates(inputs: dict[str, Any], attributes: dict[str, Any]) -> Callable[[], Any]:
    _say(inputs["budget"].shape.rank == 0)
    unused = tf.Variable(0)
    tables = HashTables(inputs["entries"], inputs["starts"], unused, unused)
    order = BucketOrder(inputs["order"], inputs["rotations"], inputs["first_class"])
    budget = int(inputs["budget"])
    return lambda: bucket_candidates(
        tables,
        inputs["codes"],
        budget,
        order,
        per_example=attributes["own"],
        max_per_bucket=attributes["most_of_bucket"],
        num_ranges=attributes["num_ranges"],
        gives_marks=attributes["gives_marks"],
        implementation="composed",
    )


def _multi_index_draws(inputs: dict[str, Any], attributes: dict[str, Any]) -> Callable[[], Any]:
    first, second, codes, entries, starts, sums, uniform = inputs.values()
    num_words = first.shape[-1] if first.shape.rank == 2 else 0
    # The function takes shapes that fit for granted; where sums don't rise, a search may find
    # anything.
    _say(num_words > 0 and codes.shape.rank == 1 and codes.shape[0] > 0)
    _say(first.shape == second.shape and codes.shape == entries.shape)
    _say(sums.shape == [codes.shape[0] + 1] and starts.shape == [num_words**2 + 1])
    _say(bool(tf.reduce_all(sums[1:] > sums[:-1])))
    _say(uniform.shape.rank == 3 and uniform.shape[::2] == [first.shape[0], 3])
    lists = ClassLists(codes, entries, starts, sums)
    return lambda: multi_index_draws(first, second, lists, uniform, implementation="composed")


def _bounded_top_k(inputs: dict[str, Any], attributes: dict[str, Any]) -> Callable[[], Any]:
    hidden, bias, kernel, *rows = inputs.values()
    _say(kernel.dtype in (tf.float32, tf.bfloat16))  # the function serves more
    _say(bias.dtype == kernel.dtype)
    bias = None if bias.shape == [0] else bias
    _say([row.dtype for row in rows] == [tf.int8, tf.float32, tf.float32])
    return lambda: bounded_top_k(
        hidden, kernel, bias, BoundedRows(*rows), attributes["k"], implementation="composed"
    )


def _probed_top_k(inputs: dict[str, Any], attributes: dict[str, Any]) -> Callable[[], Any]:
    hidden, bias, kernel, *tables = inputs.values()
    _say(kernel.dtype in (tf.float32, tf.bfloat16))  # the function accepts more types
    _say(bias.dtype == kernel.dtype)
    bias = None if bias.shape == [0] else bias
    dtypes = [tf.int8, tf.float32, tf.float32, tf.int32, *[tf.float32] * 3, tf.int32]
    _say([table.dtype for table in tables] == dtypes)
    _say(tables[-1].shape.rank == 1)
    rows, lists = BoundedRows(*tables[:3]), ClassesOfLists(*tables[3:])
    return lambda: probed_top_k(
        hidden, kernel, bias, rows, lists, **attributes, implementation="composed"
    )


def _filtered_top_k(inputs: dict[str, Any], attributes: dict[str, Any]) -> Callable[[], Any]:
    hidden, kernel, bias, excluded, groups, wanted, *numbers = inputs.values()
    _say(kernel.dtype in (tf.float32, tf.bfloat16))  # the function serves more
    _say(bias.dtype == kernel.dtype and excluded.dtype == tf.int64)
    _say(groups.dtype == wanted.dtype == tf.int32)
    # The function takes a filter that fits for granted.
    _say(hidden.shape.rank == excluded.shape.rank == 2)
    _say(groups.shape.rank == wanted.shape.rank == 1 and len(excluded) == len(hidden))
    has_groups = len(groups) > 0
    _say(not has_groups or (groups.shape == kernel.shape[:1] and len(wanted) == len(hidden)))
    bias = None if bias.shape == [0] else bias
    shard = _shard(*numbers)
    allowed = ClassFilter(excluded, *((groups, wanted) if has_groups else (None, None)))

    def call() -> Any:
        top = filtered_top_k(
            hidden,
            kernel,
            bias,
            attributes["k"],
            allowed,
            shard=shard,
            implementation="composed",
        )
        return top.log_partition, top.scores, top.ids

    return call


def _streamed_logits(inputs: dict[str, Any], attributes: dict[str, Any]) -> Callable[[], Any]:
    hidden, kernel, bias, labels, scores, *numbers = inputs.values()
    scores = None if scores.shape == [0, 0] else scores
    shard = _shard(*numbers)
    _say(kernel.dtype in (tf.float32, tf.bfloat16))  # the function serves more
    _say(bias.dtype == kernel.dtype)
    bias = None if bias.shape == [0] else bias
    return lambda: streamed_logits(
        hidden,
        kernel,
        bias,
        labels,
        attributes["k"],
        target_scores=scores,
        shard=shard,
        implementation="composed",
    )


_FUNCTIONS = {
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
    "TfxMultiIndexDraws": _multi_index_draws,
    "TfxResourceStreamedLogits": _streamed_logits,
    "TfxProbedTopK": _probed_top_k,
    "TfxRowUpdate": _row_update,
    "TfxStreamedLogits": _streamed_logits,
}
