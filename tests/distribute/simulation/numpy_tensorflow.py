# SPDX-License-Identifier: Apache-2.0
"""The few functions of TensorFlow that the protocol of workers uses, in NumPy: a hundred times as
fast for small arrays. `in_place_of_tensorflow` runs the real protocol on them.

Dtypes and errors are TensorFlow's. Shapes are checked less. Runs of the same seeds over processes
show that the results equal TensorFlow's.
"""

from __future__ import annotations

import contextlib
import importlib
import operator
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import tensorflow

MODULES = (
    *(f"distribute.{name}" for name in ("workers", "meeting", "global_batch", "row_routes")),
    *(f"distribute.{name}" for name in ("class_shard", "data_parallel", "dataset_shard")),
    *(
        "distribute.packed_numbers",
        "ops.class_rows",
        "ops.candidates.candidate_gradients",
        "ops.rows.variable_rows",
        "indexes.found_by_all",
        "indexes.table_schedule",
    ),
    *("heads.replicated_rows", "callbacks.checkpoint_folder"),
)
_DTYPES: dict[np.dtype, Any] = {}


@contextlib.contextmanager
def in_place_of_tensorflow(*others: Any) -> Iterator[None]:
    """Within it the modules of the protocol, and others, have this as their `tf`."""
    modules = [importlib.import_module(f"tfx_largeout.{name}") for name in MODULES]
    for module in (*modules, *others):
        module.tf = FUNCTIONS
    try:
        yield
    finally:
        for module in (*modules, *others):
            module.tf = tensorflow


class Shape(tuple):
    rank = property(len)

    def __getitem__(self, place: Any) -> Any:
        found = super().__getitem__(place)
        return Shape(found) if isinstance(found, tuple) else found

    def num_elements(self) -> int:
        return int(np.prod(self))

    def concatenate(self, other: Shape) -> Shape:
        return Shape((*self, *other))

    def is_fully_defined(self) -> bool:
        return True


class Tensor:
    def __init__(self, array: Any, backward: Any = None) -> None:
        self.array, self.backward = np.asarray(array), backward

    @property
    def dtype(self) -> Any:
        kind = self.array.dtype
        if kind not in _DTYPES:
            _DTYPES[kind] = tensorflow.as_dtype(kind)
        return _DTYPES[kind]

    @property
    def shape(self) -> Shape:
        return Shape(self.array.shape)

    def numpy(self) -> np.ndarray:
        return self.array

    def __array__(self, *arguments: Any, **options: Any) -> np.ndarray:
        return self.array

    def __len__(self) -> int:
        return len(self.array)

    def __bool__(self) -> bool:
        return bool(self.array)

    def __int__(self) -> int:
        return int(self.array)

    __index__ = __int__

    def __getitem__(self, place: Any) -> Tensor:
        return Tensor(self.array[place])

    def __invert__(self) -> Tensor:
        return Tensor(~self.array)


def _add_operators() -> None:
    def add(name: str, run: Any) -> None:
        setattr(Tensor, f"__{name}__", lambda x, y: Tensor(run(x.array, _array(y))))
        setattr(Tensor, f"__r{name}__", lambda x, y: Tensor(run(_array(y), x.array)))

    for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow"):
        add(name, getattr(operator, name))
    for name in ("lt", "le", "gt", "ge", "eq", "ne"):
        add(name, getattr(operator, name))
    for name in ("and", "or"):
        add(name, getattr(operator, f"{name}_"))


_add_operators()


class Variable(Tensor):
    def __init__(self, value: Any, **options: Any) -> None:
        super().__init__(np.array(_array(value)))
        self.handle = self

    def assign(self, value: Any) -> None:
        self.array = np.array(_array(value))


class IndexedSlices(NamedTuple):
    values: Tensor
    indices: Tensor
    dense_shape: Any


class GradientTape:
    """Computes one gradient, of the result of a `custom_gradient`."""

    def __enter__(self) -> GradientTape:
        return self

    def __exit__(self, *error: Any) -> None:
        pass

    def watch(self, x: Tensor) -> None:
        pass

    def gradient(self, y: Tensor, x: Tensor, output_gradients: Tensor) -> Tensor:
        return output_gradients if y.backward is None else y.backward(output_gradients)


def _array(x: Any) -> np.ndarray:
    if isinstance(x, Tensor):
        return x.array
    if isinstance(x, (list, tuple)):
        return np.array([_array(part) for part in x])
    return x


def _kind(dtype: Any) -> Any:
    return getattr(dtype, "as_numpy_dtype", dtype)


def _constant(value: Any, dtype: Any = None) -> Tensor:
    array = np.array(_array(value))
    if dtype is None and not isinstance(value, (np.ndarray, np.generic, Tensor)):
        dtype = {"i": np.int32, "f": np.float32}.get(array.dtype.kind)
        dtype = None if array.size and np.abs(array).max() > 2**31 - 1 else dtype
    return Tensor(array if dtype is None else array.astype(_kind(dtype)))


def _cast(x: Any, dtype: Any) -> Tensor:
    return Tensor(np.asarray(_array(x)).astype(_kind(dtype)))


def _bitcast(x: Tensor, dtype: Any) -> Tensor:
    array, kind = np.ascontiguousarray(x.array).reshape(x.shape), np.dtype(_kind(dtype))
    if kind.itemsize < array.itemsize:
        return Tensor(array[..., np.newaxis].view(kind))
    viewed = array.view(kind)
    return Tensor(viewed[..., 0] if kind.itemsize > array.itemsize else viewed)


def _pad(x: Tensor, paddings: Any, constant_values: Any = 0) -> Tensor:
    return Tensor(np.pad(x.array, _array(paddings), constant_values=_array(constant_values)))


def _where(condition: Any, x: Any = None, y: Any = None) -> Tensor:
    if x is None:
        return Tensor(np.argwhere(_array(condition)))
    return Tensor(np.where(_array(condition), _array(x), _array(y)))


class Unique(NamedTuple):
    y: Tensor
    idx: Tensor


def _unique(x: Tensor) -> Unique:
    _, first, places = np.unique(x.array, return_index=True, return_inverse=True)
    rank = np.argsort(np.argsort(first))
    return Unique(Tensor(x.array[np.sort(first)]), Tensor(rank[places].astype(np.int32)))


def _segment_sum(data: Any, ids: Any, number: Any) -> Tensor:
    data, ids = _array(data), _array(ids)
    total = np.zeros((int(number), *data.shape[1:]), data.dtype)
    np.add.at(total, ids[ids >= 0], data[ids >= 0])
    return Tensor(total)


def _scatter(indices: Tensor, updates: Any, shape: Any) -> Tensor:
    updates = _array(updates)
    result = np.zeros(tuple(_array(shape).tolist()), updates.dtype)
    np.add.at(result, tuple(indices.array.T), updates)
    return Tensor(result)


def _update(x: Tensor, indices: Tensor, updates: Any) -> Tensor:
    result = x.array.copy()
    result[tuple(indices.array.T)] = _array(updates)
    return Tensor(result)


def _gather(x: Any, places: Any, axis: int = 0) -> Tensor:
    return Tensor(np.take(_array(x), _array(places), axis=axis))


def _cumsum(x: Any, exclusive: bool = False) -> Tensor:
    total = np.cumsum(_array(x))
    return Tensor(total - _array(x) if exclusive else total)


def _log_sum_exp(x: Any, axis: int) -> Tensor:
    array = _array(x)
    top = array.max(axis=axis, keepdims=True)
    return Tensor((np.log(np.exp(array - top).sum(axis=axis, keepdims=True)) + top).squeeze(axis))


def _assert(condition: Any, data: Any, summarize: int = 3) -> None:
    if not _array(condition):
        text = " ".join(
            str(part.array.tolist() if isinstance(part, Tensor) else part) for part in data
        )
        raise tensorflow.errors.InvalidArgumentError(None, None, text)


def _custom_gradient(function: Any) -> Any:
    def run(*arguments: Any) -> Tensor:
        y, gradient = function(*arguments)
        return Tensor(y.array, gradient)

    return run


def _map_structure(function: Any, x: Any) -> Any:
    if isinstance(x, (tuple, list)):
        return type(x)(_map_structure(function, part) for part in x)
    return function(x)


def _flatten(x: Any) -> list[Any]:
    if isinstance(x, (tuple, list)):
        return [leaf for part in x for leaf in _flatten(part)]
    return [x]


def _of(function: Any, kind: Any = None) -> Any:
    """Returns a function of NumPy as one of tensors, with results of a dtype."""

    def run(*arguments: Any, **options: Any) -> Tensor:
        found = np.asarray(function(*map(_array, arguments), **options))
        return Tensor(found if kind is None else found.astype(kind))

    return run


def _nothing(*arguments: Any) -> Any:
    return contextlib.nullcontext()


FUNCTIONS = SimpleNamespace(
    **{n: getattr(tensorflow, n) for n in ("bool", "int8", "int16", "int32", "int64", "errors")},
    **{n: getattr(tensorflow, n) for n in ("float32", "float64", "bfloat16", "newaxis")},
    **{n: getattr(tensorflow, n) for n in ("SparseTensor", "RaggedTensor")},
    **{n: _of(getattr(np, n)) for n in ("floor", "maximum", "minimum", "equal", "sort")},
    **{n: _of(getattr(np, n)) for n in ("ones_like", "zeros_like", "transpose")},
    **{f"reduce_{n}": _of(getattr(np, n)) for n in ("sum", "max", "all", "any")},
    **{n: _nothing for n in ("device", "control_dependencies", "init_scope")},
    Tensor=Tensor,
    Variable=Variable,
    distribute=tensorflow.distribute,
    IndexedSlices=IndexedSlices,
    GradientTape=GradientTape,
    constant=_constant,
    convert_to_tensor=lambda x: _constant(getattr(x, "value", x)),
    cast=_cast,
    bitcast=_bitcast,
    identity=lambda x: x,
    stop_gradient=lambda x: x,
    ensure_shape=lambda x, shape: x,
    executing_eagerly=lambda: True,
    custom_gradient=_custom_gradient,
    zeros=lambda shape, dtype=np.float32: Tensor(np.zeros(_array(shape), _kind(dtype))),
    ones=lambda shape, dtype=np.float32: Tensor(np.ones(_array(shape), _kind(dtype))),
    fill=lambda shape, x: Tensor(np.full(tuple(_array(shape)), _array(x))),
    range=lambda *n, dtype=None: Tensor(
        np.arange(*map(_array, n), dtype=_kind(dtype) or np.asarray(_array(n[-1])).dtype)
    ),
    shape=lambda x, dtype=np.int32: Tensor(np.array(_array(x).shape, _kind(dtype))),
    size=lambda x, dtype=np.int32: Tensor(np.array(_array(x).size, _kind(dtype))),
    reshape=lambda x, shape: Tensor(_array(x).reshape(_array(shape))),
    stack=lambda parts, axis=0: Tensor(np.stack([_array(part) for part in parts], axis)),
    concat=lambda parts, axis: Tensor(np.concatenate([_array(part) for part in parts], axis)),
    unstack=lambda x: [Tensor(part) for part in x.array],
    split=lambda x, sizes: [Tensor(p) for p in np.split(x.array, np.cumsum(_array(sizes))[:-1])],
    add_n=lambda parts: Tensor(sum(_array(part) for part in parts)),
    pad=_pad,
    where=_where,
    unique=_unique,
    scatter_nd=_scatter,
    tensor_scatter_nd_update=_update,
    gather=_gather,
    gather_nd=lambda x, places: Tensor(x.array[tuple(places.array.T)]),
    boolean_mask=lambda x, mask: Tensor(_array(x)[_array(mask)]),
    sequence_mask=lambda n, most: Tensor(np.arange(int(most)) < _array(n)[..., np.newaxis]),
    argsort=lambda x, stable=True: Tensor(np.argsort(_array(x), kind="stable").astype(np.int32)),
    searchsorted=lambda x, values, out_type=np.int32: Tensor(
        np.searchsorted(_array(x), _array(values)).astype(_kind(out_type))
    ),
    one_hot=lambda place, size, dtype: Tensor((np.arange(size) == place).astype(_kind(dtype))),
    cumsum=_cumsum,
    reduce_logsumexp=_log_sum_exp,
    debugging=SimpleNamespace(Assert=_assert),
    math=SimpleNamespace(
        unsorted_segment_sum=_segment_sum,
        count_nonzero=_of(np.count_nonzero, np.int64),
        log=_of(np.log),
    ),
    raw_ops=SimpleNamespace(
        ResourceGather=lambda resource, indices, dtype: _gather(resource, indices),
        ResourceScatterUpdate=lambda resource, indices, updates: resource.assign(
            _update(resource, indices[:, np.newaxis], updates)
        ),
    ),
    nest=SimpleNamespace(map_structure=_map_structure, flatten=_flatten),
)
