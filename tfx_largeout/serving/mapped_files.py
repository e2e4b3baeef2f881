# SPDX-License-Identifier: Apache-2.0
"""Files of an exported model that a process maps instead of reading them into its memory."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from tfx_largeout.memory import Weight

_ABOUT = Path("assets.extra", "mapped.json")
_VARIABLES = Path("variables", "variables")
_VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"
_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"
_LEAST_BYTES = 2**20  # smallest variable with a separate file


class MappedFiles(tf.train.experimental.ShardingCallback):
    """Writes each of some large variables to a separate file, which begins with its first number.

    Passed as `experimental_sharding_callback` of a SavedModel, which TensorFlow reads as usual.
    """

    def __init__(self, variables: Sequence[tf.Variable]) -> None:
        own = [v for v in variables if Weight.of(v).num_bytes >= _LEAST_BYTES]
        self._own = {id(variable) for variable in own}
        self._files: dict[str, str] = {}

    @property
    def description(self) -> str:
        """The name for TensorFlow."""
        return "a file for each large table"

    def __call__(self, shardable_tensors: Sequence[Any]) -> list[Any]:
        """Returns the variables of each file, in order."""
        own: list[Any] = []
        others: dict[str, dict[Any, tf.Tensor]] = {}
        for each in shardable_tensors:
            part = {each.slice_spec: each.tensor}
            if id(each.trackable) in self._own:
                own.append({each.checkpoint_key: part})
            else:
                others.setdefault(each.checkpoint_key, {}).update(part)
        count = len(own) + 1
        for number, shard in enumerate(own):
            (key,) = shard
            self._files[key] = f"{_VARIABLES.name}.data-{number:05d}-of-{count:05d}"
        return [*own, others]

    def describe(self, folder: Path) -> None:
        """Writes the list of files, beside TensorFlow's files."""
        path = folder / _ABOUT
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps({"files": self._files}, indent=1), encoding="utf-8")


def load(folder: str | Path) -> Any:
    """Loads a model that `tlo.export` wrote; large tables are mapped into memory, not read.

    The result has the same signatures and answers as from `tf.saved_model.load`. The rows of W as
    stored, and an index over them, are pages of the file: several processes share them, and the
    system reads only the pages that a request needs. So loading is immediate, and takes almost no
    memory.

    Do not change the folder while the model is used: if a file is truncated, the process is killed.
    Put a new model into a new folder.

    Cost: reads the hidden layers, and biases and tables of less than 1 MiB; of everything that
    grows with C, only the pages that requests use.

    Args:
        folder: The folder that `tlo.export` wrote.

    Returns:
        The model: `load(folder).signatures["serving_default"]` answers requests.

    Raises:
        OSError: There is no such folder, or it can't be read.
        ValueError: `tlo.export` did not write it, or files of variables are damaged, such as a file
            of another size than its table. Nothing is mapped then.

    TensorFlow's loader detects changed bits; this one does not in a mapped file, since it would
    have to read all of it.
    """
    path = Path(folder)
    prefix = path / _VARIABLES
    files = _files_of(path)
    with _damage_named(prefix):
        reader = tf.train.load_checkpoint(str(prefix))
        shapes, dtypes = reader.get_variable_to_shape_map(), reader.get_variable_to_dtype_map()
    tables = {
        key: _Table(prefix.with_name(name), shapes.get(key), dtypes.get(key))
        for key, name in files.items()
    }
    for table in tables.values():
        table.check()
    others = [key for key in shapes if key not in tables and key != _GRAPH]
    is_plain = all(key.endswith(_VALUE) for key in others)  # no mutable tables; few have any
    options = tf.saved_model.LoadOptions(experimental_skip_checkpoint=is_plain)
    model = tf.saved_model.load(str(path), options=options)
    for key in others if is_plain else []:
        with _damage_named(prefix):
            value = reader.get_tensor(key)
        _at(model, key).assign(value)
    for key, table in tables.items():
        _at(model, key).assign(table.mapped())
    return model


@contextlib.contextmanager
def _damage_named(prefix: Path) -> Iterator[None]:
    """Turns errors of TensorFlow's variable reader over damaged files into a ValueError."""
    try:
        yield
    except (tf.errors.OpError, IndexError, RuntimeError) as error:
        raise ValueError(
            f"{prefix}.* must be files as tlo.export wrote them; got others: {error}"
        ) from error


class _Table:
    """A variable in a separate file."""

    def __init__(self, path: Path, shape: Any, dtype: Any) -> None:
        self.path, self.shape, self.dtype = path, shape, dtype

    def check(self) -> None:
        """Raises for a file of another size: a mapped page beyond its end kills the process."""
        if self.shape is None:
            raise ValueError(
                f"{self.path} must be of a variable of the model; got none of its name"
            )
        wanted = self.dtype.size * math.prod(self.shape)
        found = self.path.stat().st_size
        if found != wanted:
            raise ValueError(
                f"{self.path} must have {wanted} bytes, for {self.dtype.name} {self.shape}; got "
                f"{found}"
            )

    def mapped(self) -> tf.Tensor:
        """Returns a tensor backed by the file's pages."""
        unsigned = np.dtype(f"u{self.dtype.size}")  # NumPy has no bfloat16
        # DLPack does not support "r"; with "c", pages that are not changed remain the file's.
        pages = np.memmap(self.path, unsigned, "c", shape=tuple(self.shape))
        return tf.bitcast(tf.experimental.dlpack.from_dlpack(pages.__dlpack__()), self.dtype)


def _files_of(folder: Path) -> dict[str, str]:
    path = folder / _ABOUT
    try:
        files = json.loads(path.read_text(encoding="utf-8"))["files"]
        if all(isinstance(name, str) and Path(name).name == name for name in files.values()):
            return files
        problem = "names of files"
    except FileNotFoundError:
        if not (folder / "saved_model.pb").exists():
            raise
        problem = f"no {_ABOUT}"
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        problem = f"{_ABOUT}: {type(error).__name__}: {error}"
    raise ValueError(
        f"folder must be one that tlo.export wrote; got {str(folder)!r}, with {problem}. "
        "tf.saved_model.load loads any other, into memory"
    )


def _at(model: Any, key: str) -> tf.Variable:
    """Returns the variable of a loaded model by its key in the checkpoint."""
    found = model
    for name in key.removesuffix(_VALUE).split("/"):
        found = found[int(name)] if name.isdigit() else getattr(found, name)
    return found
